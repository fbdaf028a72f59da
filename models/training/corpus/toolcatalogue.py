"""The catalogue of tools that requests are written for: many wordings, requests, results and answers of each kind."""

import random

from .lexicon import (
    ABSTRACT,
    ADJECTIVES,
    CITIES,
    CITY_ZONES,
    COLOURS,
    FOODS,
    LANGUAGES,
    NOUNS,
    OBJECTS,
    TOPICS,
    US_CITIES,
    VERBS,
    WORLD_CITIES,
    any_city,
    any_name,
    any_word,
    clock,
    date,
    email,
    entries,
    identifier,
    invented,
    sentence,
    words,
)
from .toolkinds import INTEGER, NUMBER, Kind, Param, Values, enum


def place(city: str, description: str) -> str:
    """A city as the parameter's description wants it: alone, with its state, or with its country."""
    if "state" in description.lower() or "CA" in description:
        return f"{city}, {US_CITIES.get(city) or WORLD_CITIES.get(city)}" if city in CITIES else city
    if "country" in description.lower() and city in WORLD_CITIES:
        return f"{city}, {WORLD_CITIES[city]}"
    return city


CITY = Param(
    "city",
    ("location", "city", "place", "city_name", "loc", "town", "where", "q", "address"),
    (
        "The city and state, e.g. San Francisco, CA", "The city and state, e.g. San Francisco, CA", "City and country, e.g. Paris, France", "The city", "City name", "Name of the city",
        "The name of the city to look up", "The location", "A city", "", "The city to get the data for", "City and country e.g. Bogotá, Colombia", "e.g. London", "Place name", "The city name, e.g. Tokyo",
    ),
    any_city,
    shape=place,
)  # fmt: skip


def _sum(rng: random.Random) -> tuple[str, str]:
    """An expression and how it is said."""
    if rng.random() < 0.1:
        n = rng.randint(1, 9999)
        form, words = rng.choice(
            (
                ("sqrt({n})", "the square root of {n}"),
                ("{n} ** 2", "{n} squared"),
                ("{n} ** 3", "{n} to the power of 3"),
                ("{n} / 2", "half of {n}"),
            )
        )
        return form.format(n=n), words.format(n=n)
    sign = rng.choice("+-*/")
    a, b = rng.randint(1, 9999), rng.randint(1, 999)
    expression = f"{a} {sign} {b}"
    if rng.random() < 0.25:
        expression = rng.choice(
            (
                f"({a} {sign} {b}) * {rng.randint(2, 99)}",
                f"{a} {sign} {b} + {rng.randint(1, 999)}",
                f"{a} ** 2",
                f"{a / 10} {sign} {b / 4}",
            )
        )
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    return expression, expression.replace(sign, word) if expression.count(
        sign
    ) == 1 and rng.random() < 0.3 else expression


def _weather(rng: random.Random, values: Values) -> Values:
    unit = values.get("unit") or rng.choice(("celsius", "fahrenheit", "celsius", "", ""))
    degrees = rng.randint(10, 100) if unit == "fahrenheit" else rng.randint(-12, 38)
    shown = {"city": values["city"], "temperature": degrees, "condition": rng.choice(SKIES)} | (
        {"unit": unit} if unit else {}
    )
    return shown | {"degree": {"celsius": "°C", "fahrenheit": "°F", "": "degrees"}[unit]}


SKIES = entries("sunny, cloudy, rainy, windy, clear, foggy, snowy, partly cloudy, stormy, overcast, light rain")
ZONES = entries("""Europe/Paris, Europe/Berlin, Europe/London, America/New_York, America/Los_Angeles, Asia/Tokyo, Asia/Kolkata, UTC, Australia/Sydney,
America/Chicago, Asia/Shanghai, Europe/Madrid, Africa/Cairo, America/Sao_Paulo, Europe/Rome""")
CURRENCIES = words("USD EUR GBP JPY CHF CAD AUD CNY INR SEK NOK BRL")
TICKERS = words("AAPL MSFT GOOG AMZN TSLA NVDA META IBM ORCL INTC AMD NFLX DIS KO SAP")
UNIT = Param("unit", ("unit", "units", "temperature_unit", "scale", "format"), ("The temperature unit to use", "Unit of the temperature", "", "celsius or fahrenheit", "The unit to return the temperature in"), lambda rng: rng.choice(("celsius", "fahrenheit")), enum("celsius", "fahrenheit"), (" in {v}", " Use {v}.", " (in {v})", " in degrees {v}", ", in {v} please"))  # fmt: skip

KINDS: tuple[Kind, ...] = (
    Kind(
        ("get_weather", "get_current_weather", "weather", "current_weather", "fetch_weather", "lookup_weather", "weather_forecast", "get_forecast", "weather_get", "get_temperature"),
        ("Get the current weather in a given location", "Get the current weather", "Returns the weather for a city", "Look up the weather", "Get weather for a location", "Current temperature and conditions of a city", "Get current temperature for a given location.", "Retrieve the weather forecast"),
        (CITY, UNIT),
        ("What is the weather in {city}?", "What's the weather like in {city}?", "How is the weather in {city}?", "weather in {city}", "What is the weather like in {city} today?", "Tell me the weather in {city}.", "Is it raining in {city}?", "Is it cold in {city}?", "What is the temperature in {city}?", "How warm is it in {city}?", "Give me the weather for {city}.", "Do I need an umbrella in {city}?", "I am in {city}. What is the weather?", "Check the weather in {city}.", "What's the weather in {city} right now?", "Can you tell me the weather in {city}?", "Weather for {city} please", "How hot is it in {city} today?"),
        _weather,
        ("It is {temperature} {degree} and {condition} in {city}.", "The weather in {city} is {condition} with {temperature} {degree}."),
        "the weather in {city}",
        ("What is the weather like?", "How is the weather?", "What's the weather?", "Tell me the weather.", "Is it raining?"),
    ),
    Kind(
        ("get_time", "get_current_time", "current_time", "time_in", "clock", "get_local_time", "world_clock"),
        ("Get the current time in a timezone", "Returns the current time", "Get the time for a given timezone", "Current local time"),
        (Param("zone", ("timezone", "tz", "zone", "time_zone"), ("The timezone, e.g. Europe/Paris", "IANA timezone name", "IANA tz name", "Timezone", ""), lambda rng: rng.choice(ZONES) if rng.random() < 0.4 else rng.choice(tuple(CITY_ZONES)), shape=lambda value, description: CITY_ZONES.get(value, value)),),
        ("What time is it in {zone}?", "What time is it in {zone} right now?", "What is the time in {zone}?", "Tell me the time in {zone}.", "What is the current time in {zone}?", "time in {zone}?", "Give me the time for the timezone {zone}."),
        lambda rng, values: {"zone": values["zone"], "time": clock(rng)},
        ("It is {time} in {zone}.", "The time in {zone} is {time}."),
        "the time in {zone}",
    ),
    Kind(
        ("get_local_time", "city_time", "get_time", "time_for_city", "get_current_time"),
        ("Get the local time of a city", "Get the current time in a city", "Returns the local time"),
        (CITY,),
        ("What time is it in {city}?", "What is the local time in {city}?", "How late is it in {city}?", "Tell me what time it is in {city}.", "what's the time in {city}"),
        lambda rng, values: {"city": values["city"], "time": clock(rng)},
        ("It is {time} in {city}.", "The local time in {city} is {time}."),
        "the time in {city}",
        ("What time is it?", "How late is it?"),
    ),
    Kind(
        ("calculator", "calculate", "compute", "evaluate", "math", "eval_expression", "do_math"),
        ("Evaluate a mathematical expression", "A calculator", "Compute the value of an expression", "Evaluates arithmetic", "Perform a calculation"),
        (Param("expression", ("expression", "expr", "formula", "input", "query", "calculation"), ("The expression to evaluate", "A mathematical expression, e.g. 2 + 2", "Expression", "", "The math expression"), _sum, shape=lambda value, description: value[0]),),
        ("What is {expression}?", "Calculate {expression}.", "Compute {expression}", "Use the calculator: {expression}", "How much is {expression}?", "Please compute {expression}.", "{expression}", "What does {expression} equal?", "Evaluate {expression}."),
        lambda rng, values: {"expression": values["expression"], "result": rng.randint(2, 99999)},
        ("{expression} = {result}.", "The result is {result}.", "The answer is {result}."),
        "the value of {expression}",
    ),
    Kind(
        ("add", "add_numbers", "sum_numbers", "multiply", "power", "subtract_numbers", "gcd", "combine"),
        ("Work with two numbers", "Takes two numbers and returns the result", "Two-number operation"),
        (Param("a", ("a", "x", "first", "num1", "left"), ("First number", "", "The first number"), lambda rng: rng.randint(-50, 9999), NUMBER), Param("b", ("b", "y", "second", "num2", "right"), ("Second number", "", "The second number"), lambda rng: rng.randint(1, 999), INTEGER)),
        ("Use {tool} with {a} and {b}.", "Call {tool} on {a} and {b}.", "Please {tool} {a} and {b}.", "Run {tool} for {a} and {b}", "{tool} {a} {b}"),
        lambda rng, values: {"a": values["a"], "b": values["b"], "result": rng.randint(2, 99999)},
        ("The result is {result}.", "The tool returned {result}."),
        "a result for {a} and {b}",
    ),
    Kind(
        ("search", "web_search", "search_web", "google_search", "lookup", "internet_search", "find_information", "search_docs"),
        ("Search the web", "Search the internet for information", "Web search", "Find pages about a query", "Look up information online"),
        (Param("query", ("query", "q", "search_query", "text", "keywords", "term"), ("The search query", "What to search for", "", "Search terms"), lambda rng: rng.choice((rng.choice(TOPICS), rng.choice(ABSTRACT), f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", f"{any_word(rng)} {any_word(rng)}", rng.choice(TOPICS), f"the best {rng.choice(NOUNS)} in {any_city(rng)}", f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(('for', 'near', 'with', 'from', 'in'))} {rng.choice((any_city(rng), any_name(rng), rng.choice(NOUNS)))}", " ".join(any_word(rng) for _ in range(rng.randint(2, 5)))))), Param("limit", ("limit", "max_results", "count", "num_results", "top_k"), ("Number of results", "Maximum number of results", ""), lambda rng: rng.randint(1, 20), INTEGER, (" Give me {v} results.", ", at most {v} results", " (limit {v})", " Show {v} results."))),
        ("Search for {query}.", "Search the web for {query}.", "Find information about {query}.", "Look up {query}.", "search {query}", "Google {query}.", "Can you search for {query}?", "Find something about {query}.", "I need information on {query}."),
        lambda rng, values: {"query": values["query"], "title": f"{values['query']}: {rng.choice(('an introduction', 'a short guide', 'facts and figures', 'all you need to know'))}", "url": f"https://{invented(rng)}.com/{any_word(rng)}"},
        ("I found this: {title} ({url}).", "The best result is {title} at {url}."),
        "information about {query}",
    ),
    Kind(
        ("send_email", "email", "send_mail", "compose_email", "mail_send", "write_email"),
        ("Send an email", "Sends an e-mail to a person", "Send an email message", "Compose and send mail"),
        (
            Param("to", ("to", "recipient", "address", "email", "receiver", "to_address"), ("Recipient address", "E-mail address of the recipient", "", "Who gets the mail"), email),
            Param("subject", ("subject", "title", "topic"), ("Subject line", "The subject", ""), lambda rng: rng.choice((f"{any_word(rng)} {any_word(rng)}", rng.choice(("Meeting", "Hello", "Lunch", "Report", "Invoice", "Question", "Thanks", "Update"))))),
            Param("body", ("body", "text", "message", "content"), ("Text of the mail", "The message body", ""), lambda rng: sentence(rng)),
        ),
        ("Send an email to {to} with the subject {subject} and the text {body}.", "Email {to}, subject {subject}: {body}", "Write a mail to {to}. The subject is {subject} and the body is {body}.", "Send a mail to {to} with subject \"{subject}\" and body \"{body}\".", "Please send {to} an email titled '{subject}' saying '{body}'."),
        lambda rng, values: {"to": values["to"], "status": rng.choice(("sent", "delivered", "queued"))},
        ("The email to {to} was {status}.", "Done: the email to {to} was {status}."),
        "to send an email to {to}",
        ("Send an email.", "Write a mail for me."),
    ),
    Kind(
        ("send_message", "send_sms", "text_person", "message", "notify", "post_message", "chat_send"),
        ("Send a text message to a person", "Send a message", "Notify a contact", "Post a message"),
        (Param("to", ("to", "recipient", "contact", "name", "person", "user"), ("The contact", "Name of the person", ""), any_name), Param("text", ("text", "message", "content", "body"), ("The message", "Message text", ""), lambda rng: sentence(rng))),
        ("Send a message to {to}: {text}", "Text {to} that {text}.", "Tell {to} that {text}.", "Message {to}: {text}", "Write to {to}: \"{text}\"", "Let {to} know that {text}."),
        lambda rng, values: {"to": values["to"], "status": rng.choice(("sent", "delivered"))},
        ("The message to {to} was {status}.", "Done, your message to {to} was {status}."),
        "to send a message to {to}",
    ),
    Kind(
        ("translate", "translate_text", "translator", "text_translate"),
        ("Translate a text into another language", "Translates text", "Translate text to a target language"),
        (Param("text", ("text", "input", "source_text", "phrase"), ("The text to translate", "Text", ""), lambda rng: sentence(rng)), Param("language", ("target_language", "language", "to", "target", "lang"), ("The language to translate into", "Target language", ""), lambda rng: rng.choice(LANGUAGES))),
        ("Translate \"{text}\" to {language}.", "Translate {text} into {language}.", "How do you say '{text}' in {language}?", "Please translate \"{text}\" into {language}."),
        lambda rng, values: {"language": values["language"], "translation": f"{invented(rng)} {invented(rng)} {invented(rng)}"},
        ("In {language} it is: {translation}", "The {language} translation is: {translation}"),
        "a translation into {language}",
    ),
    Kind(
        ("get_stock_price", "stock_price", "get_quote", "stock_quote", "quote", "lookup_stock"),
        ("Get the price of a stock", "Current stock price", "Returns a stock quote for a symbol"),
        (Param("symbol", ("symbol", "ticker", "stock", "stock_symbol"), ("The ticker symbol", "Stock symbol, e.g. AAPL", ""), lambda rng: rng.choice((rng.choice(TICKERS), invented(rng).upper()[:4]))),),
        ("What is the stock price of {symbol}?", "How much is {symbol} now?", "Get me a quote for {symbol}.", "price of {symbol}", "How is the stock {symbol} doing?", "What does {symbol} trade at?"),
        lambda rng, values: {"symbol": values["symbol"], "price": round(rng.uniform(3, 900), 2), "currency": rng.choice(("USD", "EUR"))},
        ("{symbol} is at {price} {currency}.", "The price of {symbol} is {price} {currency}."),
        "the price of {symbol}",
    ),
    Kind(
        ("convert_currency", "currency_converter", "exchange", "currency_convert", "get_exchange_rate"),
        ("Convert an amount of money", "Convert between currencies", "Currency conversion"),
        (
            Param("amount", ("amount", "value", "sum"), ("The amount", "Amount of money", ""), lambda rng: rng.randint(1, 9000), NUMBER),
            Param("source", ("from_currency", "from", "source", "base", "source_currency"), ("The currency to convert from", "Source currency code", ""), lambda rng: rng.choice(CURRENCIES)),
            Param("target", ("to_currency", "to", "target", "quote", "target_currency"), ("The currency to convert to", "Target currency code", ""), lambda rng: rng.choice(CURRENCIES)),
        ),
        ("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?", "{amount} {source} to {target}", "What are {amount} {source} in {target}?", "Exchange {amount} {source} into {target}."),
        lambda rng, values: {"amount": values["amount"], "source": values["source"], "target": values["target"], "result": round(rng.uniform(1, 9000), 2)},
        ("{amount} {source} is {result} {target}.", "That is {result} {target}."),
        "to convert {amount} {source}",
    ),
    Kind(
        ("create_reminder", "set_reminder", "remind_me", "add_reminder", "schedule_reminder"),
        ("Create a reminder", "Set a reminder for a time", "Remind the user of something"),
        (Param("text", ("text", "title", "message", "task", "what"), ("What to be reminded of", "Reminder text", ""), lambda rng: f"{rng.choice(VERBS)} the {rng.choice(NOUNS)}"), Param("time", ("time", "when", "at", "due"), ("Time as HH:MM", "When to remind", ""), clock)),
        ("Remind me to {text} at {time}.", "Set a reminder at {time} to {text}.", "At {time}, remind me to {text}.", "Create a reminder for {time}: {text}"),
        lambda rng, values: {"text": values["text"], "time": values["time"], "status": "set"},
        ("Your reminder to {text} is set for {time}.", "I will remind you at {time} to {text}."),
        "a reminder at {time}",
    ),
    Kind(
        ("create_event", "add_calendar_event", "schedule_meeting", "book_meeting", "calendar_add", "create_calendar_event"),
        ("Add an event to the calendar", "Schedule a meeting", "Create a calendar event"),
        (
            Param("title", ("title", "name", "summary", "event"), ("Title of the event", "Event name", ""), lambda rng: f"{any_word(rng)} {rng.choice(('meeting', 'party', 'call', 'lunch', 'review', 'class'))}"),
            Param("date", ("date", "day", "on"), ("Date as YYYY-MM-DD", "The date", ""), date),
            Param("time", ("time", "start_time", "start", "at"), ("Start time", "Time as HH:MM", ""), clock, said=(" at {v}", " It starts at {v}.", ", starting at {v}")),
            Param("people", ("attendees", "participants", "people", "guests", "invitees"), ("Who takes part", "List of attendees", ""), lambda rng: [any_name(rng) for _ in range(rng.randint(1, 3))], {"type": "array", "items": {"type": "string"}}, (" with {v}", " Invite {v}.", " together with {v}")),
        ),
        ("Add the event {title} on {date}", "Schedule {title} on {date}", "Put {title} into my calendar for {date}", "Create an event called {title} on {date}", "Book {title} for {date}"),
        lambda rng, values: {"title": values["title"], "date": values["date"], "status": rng.choice(("created", "confirmed", "added"))},
        ("The event {title} on {date} was {status}.", "Done: {title} was {status} for {date}."),
        "a calendar event",
    ),
    Kind(
        ("play_music", "play_song", "play", "start_music", "music_play"),
        ("Play a song", "Play music", "Start playing a song by an artist"),
        (Param("song", ("song", "title", "track", "name"), ("The song", "Title of the song", ""), lambda rng: f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}".title()), Param("artist", ("artist", "by", "singer", "band"), ("The artist", ""), any_name, said=(" by {v}", " from {v}"))),
        ("Play {song}", "Play the song {song}", "I want to hear {song}", "Put on {song}", "Start {song}"),
        lambda rng, values: {"song": values["song"], "status": "playing"},
        ("Now playing {song}.", "I am playing {song} for you."),
        "to hear {song}",
    ),
    Kind(
        ("set_light", "control_light", "lights", "switch_light", "set_lamp", "light_control"),
        ("Control a light in the house", "Turn a lamp on or off", "Switch lights"),
        (
            Param("room", ("room", "location", "where", "area"), ("The room", "Name of the room", ""), lambda rng: rng.choice(("kitchen", "bedroom", "living room", "bathroom", "garage", "office", "hall", "garden", "attic"))),
            Param("state", ("state", "action", "power", "mode"), ("on or off", "The wanted state", ""), lambda rng: rng.choice(("on", "off")), enum("on", "off")),
            Param("level", ("brightness", "level", "percent"), ("Brightness in percent", "Brightness from 0 to 100", ""), lambda rng: rng.randint(0, 100), INTEGER, (" at {v} percent", " with brightness {v}", ", brightness {v}%")),
        ),
        ("Turn {state} the light in the {room}", "Switch the {room} light {state}", "Turn the {room} lights {state}", "Put the light in the {room} {state}", "Please turn {state} the {room} light"),
        lambda rng, values: {"room": values["room"], "state": values["state"]},
        ("The light in the {room} is now {state}.", "Done, the {room} light is {state}."),
        "to switch the light in the {room}",
    ),
    Kind(
        ("set_thermostat", "set_temperature", "heating", "adjust_temperature"),
        ("Set the temperature of a room", "Control the heating", "Set the thermostat"),
        (Param("degrees", ("temperature", "degrees", "target", "value"), ("Temperature in degrees", "Target temperature", ""), lambda rng: rng.randint(14, 28), INTEGER), Param("eco", ("eco", "eco_mode", "save_energy"), ("Use the eco mode", "Save energy", ""), lambda rng: True, {"type": "boolean"}, (" with eco mode", " and turn on eco mode", " in eco mode"))),
        ("Set the temperature to {degrees} degrees", "Heat the room to {degrees}", "Make it {degrees} degrees here", "Set the thermostat to {degrees}", "I want {degrees} degrees"),
        lambda rng, values: {"degrees": values["degrees"], "status": "ok"},
        ("The temperature is set to {degrees} degrees.", "Done, I set it to {degrees} degrees."),
        "a temperature of {degrees} degrees",
    ),
    Kind(
        ("find_restaurant", "search_restaurants", "restaurant_search", "find_food", "find_restaurants"),
        ("Find restaurants in a city", "Search for places to eat", "Restaurant search"),
        (CITY, Param("cuisine", ("cuisine", "food", "kind", "type"), ("Kind of food", "The cuisine", ""), lambda rng: rng.choice(("Italian", "Chinese", "Indian", "Mexican", "French", "Thai", "Greek", "vegan", "Japanese", "Turkish", rng.choice(FOODS)))), Param("open", ("open_now", "only_open", "open"), ("Only places that are open", "Must be open now", ""), lambda rng: True, {"type": "boolean"}, (" that is open now", " open now"))),
        ("Find a place with {cuisine} food in {city}", "I want to eat {cuisine} in {city}", "Search for {cuisine} restaurants in {city}", "Where can I eat {cuisine} food in {city}", "Find {cuisine} food in {city}"),
        lambda rng, values: {"city": values["city"], "name": f"{any_word(rng).capitalize()} {rng.choice(('House', 'Garden', 'Corner', 'Kitchen'))}", "rating": round(rng.uniform(2, 5), 1)},
        ("I found {name} in {city}, rated {rating}.", "You can try {name} in {city}. Its rating is {rating}."),
        "a place to eat in {city}",
    ),
    Kind(
        ("search_flights", "find_flights", "flight_search", "book_flight", "get_flights"),
        ("Search for flights", "Find flights between two cities", "Flight search"),
        (
            Param("source", ("origin", "from", "departure", "from_city", "start"), ("City of departure", "Origin city", ""), any_city),
            Param("target", ("destination", "to", "arrival", "to_city", "end"), ("City of arrival", "Destination city", ""), any_city),
            Param("date", ("date", "day", "departure_date"), ("Date as YYYY-MM-DD", "Date of travel", ""), date, said=(" on {v}", " for {v}")),
            Param("people", ("passengers", "travellers", "adults", "seats"), ("Number of passengers", "How many people", ""), lambda rng: rng.randint(1, 8), INTEGER, (" for {v} people", " for {v} passengers")),
        ),
        ("Find flights from {source} to {target}", "Search a flight from {source} to {target}", "I want to fly from {source} to {target}", "Book a flight to {target} from {source}", "Are there flights from {source} to {target}"),
        lambda rng, values: {"target": values["target"], "flight": identifier(rng), "time": clock(rng), "price": rng.randint(40, 900)},
        ("Flight {flight} to {target} leaves at {time} and costs {price}.", "I found flight {flight} to {target} at {time} for {price}."),
        "a flight to {target}",
    ),
    Kind(
        ("get_distance", "distance", "route", "get_directions", "plan_route", "directions"),
        ("Get the distance between two places", "Plan a route", "Directions from one place to another"),
        (
            Param("source", ("start", "from", "origin", "a", "from_place"), ("Start of the route", "Where to start", ""), any_city),
            Param("target", ("end", "to", "destination", "b", "to_place"), ("End of the route", "Where to go", ""), any_city),
            Param("mode", ("mode", "by", "transport", "travel_mode"), ("Means of transport", "How to travel", ""), lambda rng: rng.choice(("car", "train", "bike", "walk")), enum("car", "train", "bike", "walk"), (" by {v}", " by {v}")),
        ),
        ("How far is it from {source} to {target}", "What is the distance between {source} and {target}", "How do I get from {source} to {target}", "Plan a route from {source} to {target}", "Directions from {source} to {target}"),
        lambda rng, values: {"source": values["source"], "target": values["target"], "km": rng.randint(3, 9000)},
        ("It is {km} km from {source} to {target}.", "The distance from {source} to {target} is {km} km."),
        "the way from {source} to {target}",
    ),
    Kind(
        ("define_word", "dictionary", "define", "lookup_word", "word_meaning"),
        ("Look up a word in a dictionary", "Define a word", "Get the meaning of a word"),
        (Param("word", ("word", "term", "entry"), ("The word", "Word to define", ""), any_word),),
        ("Define {word}.", "What does {word} mean?", "What is the meaning of {word}?", "Look up the word {word}.", "Give me the definition of {word}."),
        lambda rng, values: {"word": values["word"], "meaning": f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"},
        ("The word {word} means: {meaning}.", "{word}: {meaning}."),
        "the meaning of {word}",
    ),
    Kind(
        ("get_news", "news", "latest_news", "headlines", "fetch_news"),
        ("Get the latest news", "News headlines about a topic", "Fetch news"),
        (Param("topic", ("topic", "category", "subject", "about"), ("Topic of the news", "News category", ""), lambda rng: rng.choice((rng.choice(ABSTRACT), rng.choice(TOPICS)))), Param("count", ("count", "limit", "number", "max"), ("How many headlines", ""), lambda rng: rng.randint(1, 10), INTEGER, (" Give me {v} headlines.", " ({v} headlines)"))),
        ("What is the news about {topic}?", "Give me news on {topic}.", "Latest news about {topic}", "What happened in {topic} today?", "Show me the headlines on {topic}."),
        lambda rng, values: {"topic": values["topic"], "headline": f"{rng.choice(ADJECTIVES).capitalize()} {rng.choice(NOUNS)} surprises {any_city(rng)}"},
        ("The latest headline on {topic}: {headline}.", "Here is the news about {topic}: {headline}."),
        "news about {topic}",
    ),
    Kind(
        ("add_note", "create_note", "save_note", "write_note", "note", "add_todo", "create_task"),
        ("Save a note", "Write down a note", "Add an entry to the list"),
        (Param("text", ("text", "content", "note", "body", "title"), ("Text of the note", "The content", ""), lambda rng: sentence(rng)), Param("level", ("priority", "importance", "level"), ("Priority", "How important it is", ""), lambda rng: rng.choice(("low", "medium", "high")), enum("low", "medium", "high"), (" with {v} priority", " Priority: {v}."))),
        ("Make a note: {text}", "Write down that {text}", "Save the note \"{text}\"", "Note that {text}", "Add this to my list: {text}"),
        lambda rng, values: {"text": values["text"], "status": "saved"},
        ("I saved the note: {text}.", "Your note was {status}."),
        "to save a note",
    ),
    Kind(
        ("get_order_status", "order_status", "track_order", "lookup_order", "track_package", "find_order"),
        ("Look up an order", "Get the status of an order", "Track a package"),
        (Param("order", ("order_id", "id", "order_number", "order", "tracking_number", "reference"), ("The order number", "Identifier of the order", ""), identifier),),
        ("Where is my order {order}?", "What is the status of order {order}?", "Track {order}.", "Check order {order} for me.", "Has order {order} been sent?", "order {order} status"),
        lambda rng, values: {"order": values["order"], "status": rng.choice(("shipped", "delivered", "being packed", "delayed", "waiting for payment")), "day": date(rng)},
        ("Order {order} is {status}. The date is {day}.", "Your order {order} is {status} (date: {day})."),
        "the status of order {order}",
        ("Where is my order?", "What is the status of my order?"),
    ),
    Kind(
        ("get_user", "lookup_customer", "find_user", "get_contact", "user_info", "search_contacts"),
        ("Look up a user", "Get data about a customer", "Find a contact by name"),
        (Param("name", ("name", "user", "customer", "username", "contact"), ("Name of the user", "Who to look up", ""), any_name),),
        ("Find the user {name}.", "Look up {name}.", "What do we know about the customer {name}?", "Get the contact data of {name}.", "What is the phone number of {name}?"),
        lambda rng, values: {"name": values["name"], "phone": "".join(rng.choices("0123456789", k=8)), "city": any_city(rng)},
        ("{name} lives in {city}. The phone number is {phone}.", "I found {name} in {city} with the phone number {phone}."),
        "data about {name}",
    ),
    Kind(
        ("random_number", "roll_dice", "get_random", "random_int"),
        ("Get a random number", "Random integer in a range", "Draw a number"),
        (Param("low", ("min", "low", "from", "start"), ("Smallest value", "Lower bound", ""), lambda rng: rng.randint(0, 20), INTEGER), Param("high", ("max", "high", "to", "end"), ("Largest value", "Upper bound", ""), lambda rng: rng.randint(21, 1000), INTEGER)),
        ("Give me a random number between {low} and {high}.", "Pick a number from {low} to {high}.", "Random number from {low} to {high}", "Draw a number between {low} and {high}."),
        lambda rng, values: {"result": rng.randint(0, 1000)},
        ("The random number is {result}.", "I drew {result}."),
        "a random number",
    ),
    Kind(
        ("read_file", "open_file", "get_file", "cat", "load_document", "file_read"),
        ("Read a file", "Return the content of a file", "Load a document from disk"),
        (Param("path", ("path", "file", "filename", "file_path"), ("Path of the file", "The file to read", ""), lambda rng: f"{rng.choice(('', '/home/', 'docs/', 'src/', '/tmp/'))}{any_word(rng)}.{rng.choice(('txt', 'md', 'py', 'json', 'csv', 'log'))}"),),
        ("Read the file {path}.", "What is in {path}?", "Show me {path}.", "Open {path}", "Print the content of {path}."),
        lambda rng, values: {"path": values["path"], "content": sentence(rng)},
        ("The file {path} says: {content}", "In {path} I read: {content}"),
        "the content of {path}",
    ),
    Kind(
        ("set_timer", "start_timer", "timer", "set_alarm", "countdown"),
        ("Start a timer", "Set a timer in minutes", "Count down some minutes"),
        (Param("minutes", ("minutes", "duration", "length", "time"), ("Length in minutes", "Duration in minutes", ""), lambda rng: rng.randint(1, 120), INTEGER), Param("label", ("label", "name", "title"), ("Name of the timer", ""), any_word, said=(" called {v}", " for the {v}", " with the label {v}"))),
        ("Set a timer for {minutes} minutes", "Start a timer of {minutes} minutes", "Timer {minutes} minutes", "Wake me in {minutes} minutes", "Count down {minutes} minutes"),
        lambda rng, values: {"minutes": values["minutes"], "status": "running"},
        ("The timer for {minutes} minutes is {status}.", "Done, the timer runs for {minutes} minutes."),
        "a timer of {minutes} minutes",
    ),
    Kind(
        ("book_hotel", "find_hotel", "hotel_search", "reserve_room"),
        ("Book a hotel room", "Find a hotel", "Reserve a room in a city"),
        (CITY, Param("nights", ("nights", "days", "duration"), ("Number of nights", "How many nights", ""), lambda rng: rng.randint(1, 21), INTEGER), Param("guests", ("guests", "people", "persons"), ("Number of guests", ""), lambda rng: rng.randint(1, 6), INTEGER, (" for {v} people", " for {v} guests"))),
        ("Book a hotel in {city} for {nights} nights", "I need a room in {city} for {nights} nights", "Find me a hotel in {city} for {nights} nights", "Reserve {nights} nights in {city}"),
        lambda rng, values: {"city": values["city"], "hotel": f"Hotel {any_word(rng).capitalize()}", "price": rng.randint(30, 400)},
        ("I booked {hotel} in {city} for {price} per night.", "{hotel} in {city} costs {price} per night."),
        "a hotel in {city}",
    ),
    Kind(
        ("get_population", "population", "city_info", "get_city_data", "country_info"),
        ("Get the population of a place", "Facts about a city", "Number of people who live in a place"),
        (CITY,),
        ("How many people live in {city}?", "What is the population of {city}?", "population of {city}", "How big is {city}?", "Tell me the population of {city}."),
        lambda rng, values: {"city": values["city"], "population": rng.randint(1000, 9999999)},
        ("{city} has {population} people.", "About {population} people live in {city}."),
        "the population of {city}",
    ),
    Kind(
        ("paint", "set_color", "change_color", "set_background", "color_object"),
        ("Change the colour of a thing", "Set a color", "Paint something"),
        (Param("thing", ("object", "thing", "target", "item", "element"), ("What to paint", "The object", ""), lambda rng: rng.choice(OBJECTS)), Param("colour", ("color", "colour", "value"), ("The colour", "Name of the color", ""), lambda rng: rng.choice(COLOURS))),
        ("Paint the {thing} {colour}.", "Make the {thing} {colour}.", "Change the color of the {thing} to {colour}.", "Set the {thing} to {colour}."),
        lambda rng, values: {"thing": values["thing"], "colour": values["colour"], "status": "done"},
        ("The {thing} is {colour} now.", "Done, I made the {thing} {colour}."),
        "a {colour} {thing}",
    ),
)  # fmt: skip
