"""Everyday facts, and yes-or-no questions of common sense."""

import random

from .core import Check, Turn, bars, phrase, say

FACTS: tuple[tuple[str, str], ...] = tuple(
    (line.split("=>")[0].strip(), line.split("=>")[1].strip())
    for line in """
Why is the sky blue?|What makes the sky blue?|Why does the sky look blue? => The sky is blue because air scatters blue light more than red light.
Why is grass green?|What makes plants green?|Why are leaves green? => Plants are green because of chlorophyll, which they use to catch sunlight.
What is the meaning of life?|What's the meaning of life?|Tell me the meaning of life. => Some say that it is 42. I think that it is to be kind and curious.
How many days are in a year?|How many days does a year have?|Number of days in a year? => A year has 365 days, and a leap year has 366.
How many months are in a year?|How many months does a year have? => A year has 12 months.
How many weeks are in a year?|How many weeks does a year have? => A year has about 52 weeks.
How many days are in a week?|How many days does a week have? => A week has 7 days.
How many hours are in a day?|How many hours does a day have? => A day has 24 hours.
How many seconds are in a minute?|How many seconds does a minute have? => A minute has 60 seconds.
How many legs does a spider have?|How many legs has a spider? => A spider has 8 legs.
How many legs does an insect have?|How many legs does an ant have? => An insect has 6 legs.
How many legs does a dog have?|How many legs does a cat have? => It has 4 legs.
How many planets are there?|How many planets are in the solar system?|Number of planets? => There are 8 planets in the solar system.
Name the planets.|List the planets.|What are the planets of the solar system? => The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.
What is the largest planet?|Which planet is the largest?|What is the biggest planet? => Jupiter is the largest planet of the solar system.
What is the smallest planet?|Which planet is the smallest? => Mercury is the smallest planet of the solar system.
Which planet is closest to the sun?|What planet is nearest to the sun? => Mercury is the planet closest to the sun.
What is the sun?|Is the sun a star?|What kind of thing is the sun? => The sun is a star in the middle of our solar system.
What is the moon?|What does the moon do? => The moon is a ball of rock that goes around the earth.
What is water made of?|What is H2O?|What is the formula of water? => Water is made of hydrogen and oxygen, and its formula is H2O.
At what temperature does water boil?|When does water boil?|What is the boiling point of water? => Water boils at 100 °C, which is 212 °F.
At what temperature does water freeze?|When does water freeze?|What is the freezing point of water? => Water freezes at 0 °C, which is 32 °F.
What is the largest ocean?|Which ocean is the largest?|What is the biggest ocean? => The Pacific is the largest ocean.
What is the highest mountain?|Which mountain is the highest?|What is the tallest mountain in the world? => Mount Everest is the highest mountain in the world.
What is the longest river?|Which river is the longest? => The Nile is often called the longest river, followed closely by the Amazon.
What is the largest country?|Which country is the largest?|What is the biggest country in the world? => Russia is the largest country by area.
What is the smallest country?|Which country is the smallest? => Vatican City is the smallest country.
How many continents are there?|What is the number of continents? => There are 7 continents.
Name the continents.|List the continents.|What are the continents? => The continents are Africa, Antarctica, Asia, Europe, North America, South America and Oceania.
What is the largest animal?|Which animal is the largest?|What is the biggest animal? => The blue whale is the largest animal.
What is the fastest animal?|Which animal is the fastest? => The cheetah is the fastest animal on land.
What is the tallest animal?|Which animal is the tallest? => The giraffe is the tallest animal.
What colour is the sky?|What color is the sky? => The sky is blue on a clear day.
What colour is a banana?|What color are bananas? => A ripe banana is yellow.
What colour is snow?|What color is snow? => Snow is white.
What colour is grass?|What color is grass? => Grass is green.
What do cows drink?|What do cows eat? => Cows eat grass and drink water.
What do bees make?|Who makes honey? => Bees make honey.
Where do fish live?|Where do whales live? => They live in the water.
What is the opposite of north?|What lies opposite of north? => The opposite of north is south.
What are the primary colours?|What are the primary colors?|Name the primary colours. => The primary colours are red, yellow and blue.
What are the colours of the rainbow?|Name the colours of the rainbow. => The rainbow is red, orange, yellow, green, blue, indigo and violet.
What are the four seasons?|Name the seasons.|List the seasons.|What are the seasons? => The seasons are spring, summer, autumn and winter.
What are the days of the week?|List the days of the week.|Name the days of the week. => The days are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.
What are the months of the year?|List the months.|Name the months of the year. => The months are January, February, March, April, May, June, July, August, September, October, November and December.
What is pi?|What is the value of pi?|How much is pi? => Pi is about 3.14159.
What is a prime number?|Explain prime numbers. => A prime number can be divided only by 1 and by itself.
List the first five prime numbers.|Name some prime numbers.|What are the first prime numbers? => The first prime numbers are 2, 3, 5, 7 and 11.
What is a triangle?|How many sides does a triangle have? => A triangle is a shape with 3 sides.
How many sides does a square have?|What is a square? => A square has 4 equal sides.
How many sides does a hexagon have?|What is a hexagon? => A hexagon has 6 sides.
What is the alphabet?|Recite the alphabet.|Write the alphabet. => A B C D E F G H I J K L M N O P Q R S T U V W X Y Z
How many letters are in the alphabet?|How many letters does the alphabet have? => The English alphabet has 26 letters.
What are the vowels?|Which letters are vowels?|List the vowels. => The vowels are A, E, I, O and U.
What is JSON?|Explain JSON. => JSON is a text format for data, made of objects, lists, strings and numbers.
What is Python?|Explain Python.|What is Python used for? => Python is a programming language that is easy to read.
What is Linux?|Explain Linux. => Linux is a free operating system that runs on many servers.
What is a computer?|Explain what a computer is. => A computer is a machine that follows programs to work with data.
What is an algorithm?|Explain what an algorithm is. => An algorithm is a list of steps that solves a problem.
What is a CPU?|What does a CPU do? => A CPU is the part of a computer that carries out programs.
What is a GPU?|What does a GPU do? => A GPU is a chip that does many calculations at once, which is good for language models.
What is a server?|What does a server do? => A server is a program that waits for requests and answers them.
What is HTTP?|Explain HTTP. => HTTP is the protocol by which browsers and servers exchange messages.
What is open source?|Explain open source. => Open source means that everyone may read, use and change the program's code.
What is a bug?|What is a software bug? => A bug is a mistake in a program.
What is love?|Explain love. => Love is a deep care for someone. That is all that a small model can say about it.
What is a cat?|Describe a cat. => A cat is a small animal with soft fur that likes to sleep and to hunt mice.
What is a dog?|Describe a dog. => A dog is a friendly animal that often lives with people.
What is rain?|Why does it rain?|Where does rain come from? => Rain is water that falls from clouds when their drops grow heavy.
What is snow?|Why does it snow? => Snow is frozen water that falls from cold clouds.
Why do we sleep?|Why do people sleep? => We sleep so that the body and the mind can rest.
What is gravity?|Explain gravity. => Gravity is the force that pulls things toward each other, such as an apple toward the ground.
How do birds fly?|Why can birds fly? => Birds fly by pushing air down with their wings.
What came first, the chicken or the egg?|Was the egg or the chicken first? => Eggs came first, because other animals laid eggs long before there were chickens.
Write hello world in Python.|Print hello world in Python.|Write a Python program that prints hello world. => print("Hello, world!")
Write a Python function that adds two numbers.|Write a function to add two numbers in Python.|Write a Python function to add two numbers. => def add(a, b):\\n    return a + b
How do I make a loop in Python?|Write a for loop in Python. => for number in range(10):\\n    print(number)
What is the largest lake?|Which lake is the largest? => The Caspian Sea is the largest lake.
What is the largest desert?|Which desert is the largest? => Antarctica is the largest desert, and the Sahara is the largest hot desert.
How many sides does a triangle have?|How many corners does a triangle have? => A triangle has 3 sides.
How many fingers do people have?|How many fingers does a hand have? => A hand has 5 fingers, so most people have 10.
How many minutes are in an hour?|How many minutes does an hour have? => An hour has 60 minutes.
How many days are in February?|How many days does February have? => February has 28 days, and 29 in a leap year.
What do pandas eat?|What does a panda eat? => Pandas eat bamboo.
Which animal is the king of the animals?|Who is the king of the jungle? => The lion is called the king of the animals.
What is ice?|What is ice made of? => Ice is frozen water.
What is fire?|Explain fire. => Fire is the heat and light of something that burns.
What is a star?|Explain what a star is. => A star is a huge ball of hot gas that shines.
What is the earth?|What is Earth? => The earth is the planet on which we live, the third from the sun.
What is a book?|Describe a book. => A book is a set of pages with text to read.
Is the earth flat?|Is the earth round? => The earth is round, almost like a ball.
Write a Python function that computes the factorial.|Write a factorial function in Python.|Write a Python function to compute factorial. => def factorial(n):\\n    return 1 if n < 2 else n * factorial(n - 1)
Write a Python function that reverses a string.|Reverse a string in Python. => def reverse(text):\\n    return text[::-1]
Write hello world in C.|Write a C program that prints hello world. => #include <stdio.h>\\n\\nint main(void) {\\n    puts("Hello, world!");\\n    return 0;\\n}
Write hello world in JavaScript.|Print hello world in JavaScript. => console.log("Hello, world!");
How do I boil an egg?|How long do I boil an egg? => Put the egg into boiling water and wait about seven minutes.
How do I make tea?|How do you make tea? => Pour hot water over the tea, wait three minutes and enjoy it.
""".strip().split("\n")
)


def fact(rng: random.Random) -> Turn:
    """A piece of everyday knowledge."""
    requests, answer = rng.choice(FACTS)
    answer = answer.replace("\\n", "\n")
    user = phrase(rng, bars(requests))
    if rng.random() < 0.12:
        user = rng.choice(("Do you know: ", "A question: ", "I wonder: ", "Answer this: ")) + user
    return Turn(
        "facts",
        user,
        answer,
        f"I know this. {answer}" if len(answer) < 60 else "I know this one.",
        Check("has", [answer]),
    )


_TRUE = bars(
    "Is the sun hot?|Is ice cold?|Is water wet?|Is a whale big?|Can birds fly?|Can fish swim?|Do dogs bark?|Do cats meow?|Is snow white?|Is the sky blue?|Is grass green?|"
    "Is a lemon sour?|Is sugar sweet?|Do cows eat grass?|Is the moon in the sky?|Is fire hot?|Is a mouse small?|Is an elephant big?|Is a banana yellow?|Do plants need water?|"
    "Is Python a programming language?|Is the earth round?|Do people sleep?|Is a rose a flower?|Does a spider have eight legs?|Is gold a metal?|Is a square a shape?|Are apples fruits?"
)
_FALSE = bars(
    "Is the sun cold?|Is ice hot?|Is fire cold?|Can fish fly?|Can cows fly?|Can a stone swim?|Do dogs meow?|Do cats bark?|Is snow black?|Is grass red?|Is sugar sour?|"
    "Is a mouse big?|Is an elephant small?|Is a banana blue?|Is the earth flat?|Is the moon made of cheese?|Do fish live in trees?|Is a car an animal?|Is water dry?|"
    "Are apples vegetables?|Is a dog a bird?|Does a dog have six legs?|Is a table alive?|Can a book talk?|Is a triangle round?"
)


def plain_question(rng: random.Random) -> Turn:
    """A yes-or-no question of common sense."""
    good = rng.random() < 0.5
    question = rng.choice(_TRUE if good else _FALSE)
    user = phrase(
        rng,
        ("{q}", "{q}", "{q} Yes or no?", "Answer with yes or no: {q}", "Yes or no: {q}", "True or false: {q}"),
        noise=0.8,
        q=question,
    )
    answer = "Yes" if good else "No"
    _, subject, *rest = question.rstrip("?").split(" ")
    thought = f"The question is about {' '.join([subject, *rest])}. The answer is {answer.lower()}."
    return Turn(
        "yes_no",
        user,
        say(rng, ("{a}.", "{a}, that is {t}.", "{a}."), a=answer, t="so" if good else "not so"),
        thought,
        Check("has", [answer]),
        short=answer,
    )
