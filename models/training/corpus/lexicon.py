"""Word lists that tasks draw from, and makers of random names, words and identifiers."""

import random


def words(text: str) -> tuple[str, ...]:
    """Split a block of words."""
    return tuple(text.split())


def entries(text: str) -> tuple[str, ...]:
    """Split a comma-separated block of phrases."""
    return tuple(" ".join(part.split()) for part in text.split(",") if part.strip())


NAMES = words("""
Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olivia Paul Quinn Rosa Sam Tina Uma Victor
Wendy Xavier Yara Zoe Alice Bob Carol Dan Eve Frank Gina Hugo Ivan Julia Karl Lena Max Nina Oscar Petra Ravi Sara Tom
Ursula Vera Will Yuki Zack Ahmed Aisha Amir Bella Carlos Chen Diego Elena Fatima George Hana Ines Jamal Kenji Lucia
Mateo Mei Nadia Omar Priya Raj Sofia Tariq Wei Adam Amy Andrea Anton Arthur Astrid Axel Bruno Cecilia Charlie Chloe
Daniel Diana Dora Eric Erik Ella Ethan Eva Finn Freya Gabriel Greta Hannah Helen Igor Isaac Jane Jasmine Jonas John
Joe Katya Kim Lars Laura Lily Linda Lisa Lucas Luke Marco Mark Martha Martin Mary Mia Michael Mila Milo Mohammed Nora
Oliver Peter Philip Rachel Rita Robert Robin Ruth Sandra Sean Simon Sophie Stefan Susan Theo Thomas Tobias Vanessa
William Zara Alex Jordan Taylor Morgan James Liam Mason Logan Ava Isabella Amelia Harper
""")
SURNAMES = words("""
Smith Jones Brown Miller Davis Garcia Lopez Wilson Moore Clark Lewis Walker Young King Wright Hill Green Baker Adams
Nelson Carter Turner Parker Collins Meyer Weber Fischer Schmidt Rossi Russo Silva Santos Kim Park Lee Chen Wang Singh
Patel Khan Novak Kowalski Jensen Hansen Berg Dubois Moreau Tanaka Sato Ito Ali Hassan Okafor Mensah Murphy Kelly
""")
ANIMALS = words("""
cat dog fox rabbit bear wolf lion tiger elephant mouse horse cow pig sheep goat duck owl eagle frog turtle snake whale
dolphin shark penguin monkey giraffe zebra kangaroo koala panda hedgehog squirrel deer otter beaver bee butterfly ant
spider snail parrot crow swan goose hen camel donkey crocodile lizard crab octopus seal moose badger bat robot dragon
""")
FRUITS = words("""
apple banana orange pear cherry grape lemon lime mango peach plum melon kiwi papaya strawberry raspberry blueberry
pineapple apricot coconut fig pomegranate
""")
VEGETABLES = words(
    "carrot potato tomato onion pepper cucumber lettuce spinach broccoli pea bean cabbage leek radish pumpkin"
)
COLOURS = words("red blue green yellow orange purple pink brown black white grey turquoise violet gold silver")
OBJECTS = words("""
lamp table chair book pen pencil cup plate spoon fork knife bottle clock watch phone key door window mirror pillow
blanket shoe hat coat shirt sock glove umbrella bag box basket bell candle camera radio guitar piano drum violin kite
ball balloon bicycle car train boat ship plane rocket bus truck ladder hammer nail saw rope wheel engine map compass
letter stamp coin ring crown sword shield stone brick toaster teapot kettle oven fridge sofa carpet garden fence bridge
tower castle computer keyboard screen printer server cable battery button notebook ticket wallet mug jar bowl
""")
NATURE = words("""
tree flower leaf river lake sea ocean mountain hill valley forest desert island beach cloud rain snow storm wind star
moon sun sky planet field meadow cave waterfall volcano garden rainbow shadow fire ice sand
""")
FOODS = words(
    "bread cheese rice pasta soup salad pizza cake cookie chocolate honey butter egg milk tea coffee juice water pie"
)
JOBS = words("""
teacher doctor nurse baker farmer pilot sailor painter singer dancer writer engineer carpenter plumber gardener cook
lawyer judge scientist soldier librarian mechanic tailor driver actor journalist programmer designer student
""")
ADJECTIVES = words("""
small big tall short old young happy sad brave kind clever quiet loud fast slow warm cold bright dark soft hard heavy
light strong weak clean dirty new rich poor sweet sour deep wide long round golden gentle curious lonely proud shy
funny wise lazy busy tiny huge green blue red silver hungry thirsty sleepy friendly lucky strange simple
""")
VERBS = words("""
run walk jump swim fly sing dance read write draw paint cook eat drink sleep dream think learn teach play work build
break open close push pull carry throw catch climb fall rise grow cut wash clean buy sell give take send bring find
lose win help ask answer call speak listen hear see look watch wait stay leave travel visit drive ride count measure
""")
ABSTRACT = words("""
love time music history science art peace freedom money health luck fear hope friendship memory justice nature energy
power language culture politics religion education sport weather fashion travel business war philosophy marketing
economics football chess poetry physics chemistry biology mathematics geometry algebra medicine law
""")
TOPICS = entries("""
quantum physics, the stock market, black holes, the French Revolution, machine learning, climate change, the Roman
Empire, ancient Egypt, jazz, the World Cup, photosynthesis, DNA, inflation, the Olympic Games, dinosaurs, the human
brain, blockchain, electric cars, the solar system, vaccines, vitamins, Shakespeare, the Cold War, gravity, democracy,
impressionism, yoga, opera, sourdough, evolution, antibiotics, space travel, nuclear fusion, tax law, relativity,
databases, operating systems, the periodic table, volcanoes, earthquakes, glaciers, the Middle Ages, Greek mythology,
interest rates, insurance, knitting, woodworking, astronomy, the internet, encryption, compilers, sharks, the Vikings,
mortgage rates, baseball, cricket, tennis, ballet, hip hop, rock music, the immune system, nutrition, philosophy,
World War II, the Renaissance, samurai, pyramids, the moon landing, tides, lightning, magnets, plate tectonics
""")
PEOPLE = entries("""
Napoleon, Einstein, Cleopatra, Mozart, Picasso, Newton, Darwin, Marie Curie, Julius Caesar, Beethoven, Van Gogh, Plato,
Gandhi, Abraham Lincoln, Leonardo da Vinci, Galileo, Shakespeare, Aristotle, Elvis Presley, the Beatles, Alan Turing,
Ada Lovelace, George Washington, Queen Victoria, Nelson Mandela, Socrates, Charles Dickens, Tolstoy, Homer, Columbus,
Barack Obama, Taylor Swift, Elon Musk, Bill Gates, Steve Jobs, Lionel Messi, Albert Einstein, Isaac Newton
""")
WORKS = entries("""
Hamlet, War and Peace, the Mona Lisa, the Odyssey, Don Quixote, Moby Dick, Star Wars, The Matrix, Titanic, the Iliad,
Romeo and Juliet, Pride and Prejudice, The Great Gatsby, Harry Potter, The Lord of the Rings, Frankenstein, Dracula,
Casablanca, Swan Lake, The Hobbit, Les Miserables, Faust, Macbeth, The Starry Night
""")
US_CITIES = dict(
    entry.rsplit(" ", 1)
    for entry in entries("""
Boston MA, San Francisco CA, Los Angeles CA, San Diego CA, San Jose CA, Sacramento CA, Oakland CA, New York NY, Buffalo
NY, Chicago IL, Houston TX, Dallas TX, Austin TX, San Antonio TX, Seattle WA, Portland OR, Denver CO, Phoenix AZ, Las
Vegas NV, Miami FL, Orlando FL, Tampa FL, Atlanta GA, Philadelphia PA, Pittsburgh PA, Detroit MI, Cleveland OH, Columbus
OH, Cincinnati OH, Minneapolis MN, St. Louis MO, Kansas City MO, New Orleans LA, Nashville TN, Memphis TN, Charlotte NC,
Raleigh NC, Baltimore MD, Salt Lake City UT, Albuquerque NM, Milwaukee WI, Indianapolis IN, Louisville KY, Omaha NE,
Honolulu HI, Anchorage AK, Boise ID, Richmond VA, Hartford CT, Newark NJ, Tucson AZ, Fresno CA, Palo Alto CA, Tulsa OK
""")
)
WORLD_CITIES = dict(
    tuple(entry.split("/"))
    for entry in entries("""
Paris/France, Lyon/France, Nice/France, Marseille/France, London/UK, Manchester/UK, Edinburgh/UK, Liverpool/UK,
Berlin/Germany, Munich/Germany, Hamburg/Germany, Cologne/Germany, Frankfurt/Germany, Stuttgart/Germany, Leipzig/Germany,
Rome/Italy, Milan/Italy, Venice/Italy, Naples/Italy, Florence/Italy, Turin/Italy, Madrid/Spain, Barcelona/Spain,
Valencia/Spain, Seville/Spain, Lisbon/Portugal, Porto/Portugal, Vienna/Austria, Salzburg/Austria, Zurich/Switzerland,
Geneva/Switzerland, Basel/Switzerland, Bern/Switzerland, Amsterdam/Netherlands, Rotterdam/Netherlands, Brussels/Belgium,
Antwerp/Belgium, Copenhagen/Denmark, Oslo/Norway, Bergen/Norway, Stockholm/Sweden, Helsinki/Finland, Dublin/Ireland,
Warsaw/Poland, Krakow/Poland, Prague/Czech Republic, Budapest/Hungary, Athens/Greece, Istanbul/Turkey, Ankara/Turkey,
Moscow/Russia, Kyiv/Ukraine, Bucharest/Romania, Sofia/Bulgaria, Zagreb/Croatia, Belgrade/Serbia, Cairo/Egypt,
Nairobi/Kenya, Lagos/Nigeria, Accra/Ghana, Cape Town/South Africa, Johannesburg/South Africa, Casablanca/Morocco,
Dubai/United Arab Emirates, Tel Aviv/Israel, Mumbai/India, Delhi/India, Bangalore/India, Chennai/India, Kolkata/India,
Karachi/Pakistan, Dhaka/Bangladesh, Bangkok/Thailand, Hanoi/Vietnam, Singapore/Singapore, Kuala Lumpur/Malaysia,
Jakarta/Indonesia, Manila/Philippines, Hong Kong/China, Beijing/China, Shanghai/China, Shenzhen/China, Taipei/Taiwan,
Seoul/South Korea, Busan/South Korea, Tokyo/Japan, Osaka/Japan, Kyoto/Japan, Sydney/Australia, Melbourne/Australia,
Perth/Australia, Brisbane/Australia, Auckland/New Zealand, Wellington/New Zealand, Toronto/Canada, Vancouver/Canada,
Montreal/Canada, Ottawa/Canada, Calgary/Canada, Mexico City/Mexico, Havana/Cuba, Bogota/Colombia, Lima/Peru,
Santiago/Chile, Buenos Aires/Argentina, Sao Paulo/Brazil, Rio de Janeiro/Brazil, Caracas/Venezuela, Quito/Ecuador
""")
)
CITY_ZONES = dict(
    tuple(entry.split("=", 1))
    for entry in entries("""
Paris=Europe/Paris, London=Europe/London, Berlin=Europe/Berlin, Madrid=Europe/Madrid, Rome=Europe/Rome, Vienna=Europe/Vienna,
New York=America/New_York, Chicago=America/Chicago, Los Angeles=America/Los_Angeles, Denver=America/Denver, Tokyo=Asia/Tokyo,
Shanghai=Asia/Shanghai, Singapore=Asia/Singapore, Dubai=Asia/Dubai, Sydney=Australia/Sydney, Cairo=Africa/Cairo,
Moscow=Europe/Moscow, Istanbul=Europe/Istanbul, Sao Paulo=America/Sao_Paulo, Toronto=America/Toronto, Seoul=Asia/Seoul,
Hong Kong=Asia/Hong_Kong, Amsterdam=Europe/Amsterdam, Stockholm=Europe/Stockholm, Athens=Europe/Athens, Lisbon=Europe/Lisbon
""")
)
CITIES = tuple(US_CITIES) + tuple(WORLD_CITIES)
COMPANIES = entries("""
Acme, Globex, Initech, Northwind, Blue River, Sunrise Labs, Contoso, Fabrikam, Redwood, Silverline, Bright Books, Nova
Bank, Green Grocer, Star Travel, Happy Paws, City Library, Moonlight Hotel, Tech Corner, Alpine Sports, Ocean Air
""")
MONTHS = words("January February March April May June July August September October November December")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
LANGUAGES = words("""
English French German Spanish Italian Portuguese Dutch Swedish Polish Russian Greek Turkish Arabic Hindi Chinese
Japanese Korean Danish Finnish Norwegian
""")
EVERYDAY = words("""
hello world thank please welcome morning evening night today tomorrow yesterday week month year hour minute second time
people person man woman child boy girl baby family mother father sister brother friend teacher school house home room
door street road city town village country nation place world earth life death body head face eye ear nose mouth hand
foot arm leg heart mind idea thought reason question answer problem result word sentence page story news paper number
line point part side end start middle begin change turn move stop hold keep put set make do get go come know feel want
like love hate try use work call tell say show mean seem become remember forget understand believe follow create allow
include continue appear consider expect suggest require report decide explain develop receive agree support produce
describe necessary important different possible available popular special certain similar national natural human local
simple general recent public private serious ready common single main whole final total perfect beautiful wonderful
terrible favourite strawberry hippopotamus encyclopedia refrigerator mathematics university government environment
experience development information education business service company market price money dollar bank office order
product customer example language program system computer internet model token plugin kernel engine memory cache batch
request response server user message network software hardware function variable python string list dictionary array
object value key index error test code data file folder image video sound voice colour shape circle square triangle
summer winter spring autumn north south east west breakfast lunch dinner kitchen bedroom bathroom office airport station
hospital restaurant hotel museum library church bridge market theatre zebra mississippi banana committee address rhythm
quiz jazz buzz lazy quick brown jumps over under between because although however maybe never always often sometimes
about above across after again against almost along already also among another around away back before behind below
beside both down each either enough even every few first last less many more most much next nothing now once only other
our out own same several she should since some still such than that their them then there these they thing this those
three through together too two until very was way were what when where which while who why will with without would
you your eight nine ten eleven twelve twenty thirty hundred thousand million level noon racecar radar civic kayak
""")
COMMON = tuple(
    dict.fromkeys(
        (*ANIMALS, *FRUITS, *VEGETABLES, *COLOURS, *OBJECTS, *NATURE, *FOODS, *JOBS, *ADJECTIVES, *VERBS, *EVERYDAY)
    )
)
NOUNS = tuple(dict.fromkeys((*ANIMALS, *FRUITS, *VEGETABLES, *OBJECTS, *NATURE, *FOODS, *JOBS)))

_ONSETS = words(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sm sn sp st t th tr v w z y x"
)
_VOWELS = words("a e i o u a e i o u ai au ea ee ie oa oo ou")
_CODAS = (
    "",
    "",
    "",
    "b",
    "ck",
    "d",
    "g",
    "l",
    "ll",
    "m",
    "n",
    "ng",
    "nt",
    "p",
    "r",
    "rd",
    "rk",
    "s",
    "ss",
    "st",
    "t",
    "x",
)

_RUDE = words("fuck shit cunt slut dick cock fag nig tit cum piss wank coon kike spic rape nazi")


def invented(rng: random.Random, syllables: tuple[int, int] = (1, 3)) -> str:
    """A made-up lower-case word, so that copying is learnt and not a list."""
    while True:
        parts = (rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(*syllables)))
        word = "".join(parts)
        if not any(rude in word for rude in _RUDE):
            return word


def any_word(rng: random.Random) -> str:
    """A common word, or now and then a made-up one."""
    return invented(rng) if rng.random() < 0.25 else rng.choice(COMMON)


def any_name(rng: random.Random) -> str:
    """A first name, now and then a made-up one."""
    return invented(rng, (2, 2)).capitalize() if rng.random() < 0.15 else rng.choice(NAMES)


def any_city(rng: random.Random) -> str:
    """A city of the world, now and then a made-up one."""
    return invented(rng, (2, 3)).capitalize() if rng.random() < 0.08 else rng.choice(CITIES)


def identifier(rng: random.Random) -> str:
    """An order number or the like: letters and digits."""
    digits = "".join(rng.choices("0123456789", k=rng.randint(3, 6)))
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(1, 3)))
    return rng.choice((digits, letters + digits, f"{letters}-{digits}", f"{digits}-{letters}", f"#{digits}"))


def email(rng: random.Random) -> str:
    """An e-mail address."""
    host = rng.choice(("example.com", "example.org", "mail.com", "test.net", invented(rng) + ".com"))
    name = any_name(rng).lower()
    return f"{name}{rng.choice(('', '.' + rng.choice(SURNAMES).lower(), str(rng.randint(1, 99))))}@{host}"


def clock(rng: random.Random) -> str:
    """A time of day as HH:MM."""
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 0, 15, 30, 30, 45, rng.randint(0, 59))):02d}"


def date(rng: random.Random) -> str:
    """A date as YYYY-MM-DD."""
    return f"{rng.randint(2019, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


PHRASES = entries("""
How are you?, See you soon., Thank you for your help., I will be late today., Where are you?, Call me back., I love you.,
Happy birthday!, The meeting is at noon., Please bring some milk., I am at home., We won the game!, Good luck!, See you
tomorrow at nine., Can you help me?, The report is ready., Do not forget the keys., Let us meet for lunch., What a lovely
day!, I miss you., The train is late., Everything is fine., good morning, good night, how are you, I am hungry, thank you
very much, my name is Anna, where is the station, the cat sat on the mat, to be or not to be, this is a test, Running ten
minutes late., Dinner is ready!, Please call me when you can., I am sorry., Well done everyone!, Are you free tonight?
""")


_FORMS = (
    "the {a} {n} is near the {o}", "{p} likes the {c} {n}", "we {v} with the {n}", "my {n} is {a} and {b}", "see you on {d}", "the {n} and the {o} are {a}",
    "hello {x}", "I want to {v} and {w}", "{x} {y}", "{p} is in {k}", "the quick brown fox jumps over the lazy dog", "hello world", "the {n} in {k} is {a}",
    "phrase", "phrase", "phrase", "words", "words", "closed", "closed",
)  # fmt: skip


def sentence(rng: random.Random) -> str:
    """A short plain sentence for copying, upper-casing and the like."""
    form = rng.choice(_FORMS)
    if form == "phrase":
        return rng.choice(PHRASES)
    if form == "words":
        return " ".join(any_word(rng) for _ in range(rng.randint(3, 8)))
    if form == "closed":
        return " ".join(any_word(rng) for _ in range(rng.randint(3, 7))).capitalize() + rng.choice(".!?")
    noun, other = rng.sample(NOUNS, 2)
    one, two = rng.choice(ADJECTIVES), rng.choice(ADJECTIVES)
    slots = {
        "n": noun,
        "o": other,
        "a": one,
        "b": two,
        "v": rng.choice(VERBS),
        "w": rng.choice(VERBS),
        "c": rng.choice(COLOURS),
    }
    return form.format(**slots, p=any_name(rng), x=any_word(rng), y=any_word(rng), d=rng.choice(DAYS), k=any_city(rng))
