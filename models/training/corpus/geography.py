"""Countries, their capitals and continents."""

import random

from .core import Check, Turn, phrase, say
from .lexicon import CITIES, US_CITIES, WORLD_CITIES, entries, invented

_TABLE = {
    "Europe": """Albania/Tirana, Andorra/Andorra la Vella, Austria/Vienna, Belarus/Minsk, Belgium/Brussels, Bosnia and
    Herzegovina/Sarajevo, Bulgaria/Sofia, Croatia/Zagreb, Cyprus/Nicosia, the Czech Republic/Prague, Denmark/Copenhagen,
    Estonia/Tallinn, Finland/Helsinki, France/Paris, Germany/Berlin, Greece/Athens, Hungary/Budapest, Iceland/Reykjavik,
    Ireland/Dublin, Italy/Rome, Kosovo/Pristina, Latvia/Riga, Liechtenstein/Vaduz, Lithuania/Vilnius, Luxembourg/Luxembourg,
    Malta/Valletta, Moldova/Chisinau, Monaco/Monaco, Montenegro/Podgorica, the Netherlands/Amsterdam, North Macedonia/Skopje,
    Norway/Oslo, Poland/Warsaw, Portugal/Lisbon, Romania/Bucharest, Russia/Moscow, San Marino/San Marino, Serbia/Belgrade,
    Slovakia/Bratislava, Slovenia/Ljubljana, Spain/Madrid, Sweden/Stockholm, Switzerland/Bern, Ukraine/Kyiv, the United
    Kingdom/London, England/London, Scotland/Edinburgh, Wales/Cardiff""",
    "Asia": """Afghanistan/Kabul, Armenia/Yerevan, Azerbaijan/Baku, Bahrain/Manama, Bangladesh/Dhaka, Bhutan/Thimphu,
    Brunei/Bandar Seri Begawan, Cambodia/Phnom Penh, China/Beijing, Georgia/Tbilisi, India/New Delhi, Indonesia/Jakarta,
    Iran/Tehran, Iraq/Baghdad, Israel/Jerusalem, Japan/Tokyo, Jordan/Amman, Kazakhstan/Astana, Kuwait/Kuwait City,
    Kyrgyzstan/Bishkek, Laos/Vientiane, Lebanon/Beirut, Malaysia/Kuala Lumpur, the Maldives/Male, Mongolia/Ulaanbaatar,
    Myanmar/Naypyidaw, Nepal/Kathmandu, North Korea/Pyongyang, Oman/Muscat, Pakistan/Islamabad, the Philippines/Manila,
    Qatar/Doha, Saudi Arabia/Riyadh, Singapore/Singapore, South Korea/Seoul, Sri Lanka/Sri Jayawardenepura Kotte,
    Syria/Damascus, Taiwan/Taipei, Tajikistan/Dushanbe, Thailand/Bangkok, Turkey/Ankara, Turkmenistan/Ashgabat, the United
    Arab Emirates/Abu Dhabi, Uzbekistan/Tashkent, Vietnam/Hanoi, Yemen/Sanaa, East Timor/Dili""",
    "Africa": """Algeria/Algiers, Angola/Luanda, Benin/Porto-Novo, Botswana/Gaborone, Burkina Faso/Ouagadougou,
    Burundi/Gitega, Cameroon/Yaounde, Cape Verde/Praia, the Central African Republic/Bangui, Chad/N'Djamena,
    Comoros/Moroni, the Democratic Republic of the Congo/Kinshasa, the Republic of the Congo/Brazzaville,
    Djibouti/Djibouti, Egypt/Cairo, Equatorial Guinea/Malabo, Eritrea/Asmara, Eswatini/Mbabane, Ethiopia/Addis Ababa,
    Gabon/Libreville, the Gambia/Banjul, Ghana/Accra, Guinea/Conakry, Guinea-Bissau/Bissau, Ivory Coast/Yamoussoukro,
    Kenya/Nairobi, Lesotho/Maseru, Liberia/Monrovia, Libya/Tripoli, Madagascar/Antananarivo, Malawi/Lilongwe, Mali/Bamako,
    Mauritania/Nouakchott, Mauritius/Port Louis, Morocco/Rabat, Mozambique/Maputo, Namibia/Windhoek, Niger/Niamey,
    Nigeria/Abuja, Rwanda/Kigali, Senegal/Dakar, Seychelles/Victoria, Sierra Leone/Freetown, Somalia/Mogadishu, South
    Africa/Pretoria, South Sudan/Juba, Sudan/Khartoum, Tanzania/Dodoma, Togo/Lome, Tunisia/Tunis, Uganda/Kampala,
    Zambia/Lusaka, Zimbabwe/Harare""",
    "North America": """Antigua and Barbuda/Saint John's, the Bahamas/Nassau, Barbados/Bridgetown, Belize/Belmopan,
    Canada/Ottawa, Costa Rica/San Jose, Cuba/Havana, Dominica/Roseau, the Dominican Republic/Santo Domingo, El Salvador/San
    Salvador, Grenada/Saint George's, Guatemala/Guatemala City, Haiti/Port-au-Prince, Honduras/Tegucigalpa,
    Jamaica/Kingston, Mexico/Mexico City, Nicaragua/Managua, Panama/Panama City, Saint Lucia/Castries, Trinidad and
    Tobago/Port of Spain, the United States/Washington D.C., the USA/Washington D.C.""",
    "South America": """Argentina/Buenos Aires, Bolivia/Sucre, Brazil/Brasilia, Chile/Santiago, Colombia/Bogota,
    Ecuador/Quito, Guyana/Georgetown, Paraguay/Asuncion, Peru/Lima, Suriname/Paramaribo, Uruguay/Montevideo,
    Venezuela/Caracas""",
    "Oceania": """Australia/Canberra, Fiji/Suva, Kiribati/South Tarawa, the Marshall Islands/Majuro, Micronesia/Palikir,
    Nauru/Yaren, New Zealand/Wellington, Palau/Ngerulmud, Papua New Guinea/Port Moresby, Samoa/Apia, the Solomon
    Islands/Honiara, Tonga/Nuku'alofa, Tuvalu/Funafuti, Vanuatu/Port Vila""",
}
CAPITALS: dict[str, str] = {}
CONTINENTS: dict[str, str] = {}
for _continent, _text in _TABLE.items():
    for _entry in entries(_text):
        _country, _capital = _entry.split("/")
        CAPITALS[_country] = _capital
        CONTINENTS[_country] = _continent
COUNTRIES = tuple(CAPITALS)
FAMILIAR = entries("""
France, Germany, Italy, Spain, Japan, China, India, Brazil, Canada, Australia, Egypt, Mexico, Russia, Sweden, Norway,
Poland, Portugal, Greece, Turkey, Argentina, the United Kingdom, the United States, South Korea, Austria, Switzerland,
the Netherlands, Belgium, Denmark, Finland, Ireland, Kenya, Nigeria, Thailand, Vietnam, Indonesia, Peru, Chile, Cuba
""")
ASK = (
    "What is the capital of {c}?", "What is the capital of {c}?", "What's the capital of {c}?", "Capital of {c}?",
    "capital of {c}", "Which city is the capital of {c}?", "Tell me the capital of {c}.", "Name the capital of {c}.",
    "Do you know the capital of {c}?", "What is the capital city of {c}?", "Can you tell me the capital of {c}?",
    "I forgot the capital of {c}. What is it?", "Give me the capital of {c}.", "{c}: what is its capital?",
    "What city is the capital of {c}?", "Could you tell me what the capital of {c} is?", "the capital of {c} is",
    "Which is the capital city of {c}?", "Where is the government of {c}? I mean the capital.",
)  # fmt: skip
ANSWER = ("The capital of {c} is {k}.", "The capital of {c} is {k}.", "{k} is the capital of {c}.")


def country(rng: random.Random) -> str:
    """Any country, the familiar ones more often."""
    return rng.choice(FAMILIAR if rng.random() < 0.35 else COUNTRIES)


def typed(rng: random.Random, name: str) -> str:
    """A country as people type it."""
    if name.startswith("the ") and rng.random() < 0.4:
        name = name[4:]
    return name.lower() if rng.random() < 0.2 else name


def sentence_case(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def capital(rng: random.Random) -> Turn:
    """The capital of a country."""
    name = country(rng)
    city = CAPITALS[name]
    user = phrase(rng, ASK, c=typed(rng, name))
    thought = say(
        rng,
        ("The capital of {c} is {k}.", "The user asks for the capital of {c}. It is {k}.", "{c}: the capital is {k}."),
        c=name,
        k=city,
    )
    return Turn("capitals", user, say(rng, ANSWER, c=name, k=city), thought, Check("has", [city]), short=city)


_STATES = dict(
    tuple(entry.split("/"))
    for entry in entries("""
Alabama/Montgomery, Alaska/Juneau, Arizona/Phoenix, Arkansas/Little Rock, California/Sacramento, Colorado/Denver,
Connecticut/Hartford, Delaware/Dover, Florida/Tallahassee, Georgia (the state)/Atlanta, Hawaii/Honolulu, Idaho/Boise,
Illinois/Springfield, Indiana/Indianapolis, Iowa/Des Moines, Kansas/Topeka, Kentucky/Frankfort, Louisiana/Baton Rouge,
Maine/Augusta, Maryland/Annapolis, Massachusetts/Boston, Michigan/Lansing, Minnesota/Saint Paul, Mississippi/Jackson,
Missouri/Jefferson City, Montana/Helena, Nebraska/Lincoln, Nevada/Carson City, New Hampshire/Concord, New Jersey/Trenton,
New Mexico/Santa Fe, New York/Albany, North Carolina/Raleigh, North Dakota/Bismarck, Ohio/Columbus, Oklahoma/Oklahoma City,
Oregon/Salem, Pennsylvania/Harrisburg, Rhode Island/Providence, South Carolina/Columbia, South Dakota/Pierre,
Tennessee/Nashville, Texas/Austin, Utah/Salt Lake City, Vermont/Montpelier, Virginia/Richmond, Washington/Olympia,
West Virginia/Charleston, Wisconsin/Madison, Wyoming/Cheyenne
""")
)
_STATE_NAMES = {
    "CA": "California",
    "TX": "Texas",
    "FL": "Florida",
    "NY": "New York",
    "IL": "Illinois",
    "WA": "Washington",
    "MA": "Massachusetts",
}


def state(rng: random.Random) -> Turn:
    """The capital of a state of the USA."""
    name = rng.choice(tuple(_STATES))
    city = _STATES[name]
    user = phrase(rng, (*ASK[:16], "What is the capital of the state of {c}?"), c=name)
    text = say(rng, ANSWER, c=name, k=city)
    return Turn(
        "capitals",
        user,
        text,
        f"{name} is a state of the USA. Its capital is {city}.",
        Check("has", [city]),
        short=city,
    )


def nowhere(rng: random.Random) -> Turn:
    """The capital of a country that does not exist."""
    name = (
        rng.choice(("Atlantis", "Narnia", "Wakanda", "Mordor", "Utopia", "the Moon"))
        if rng.random() < 0.2
        else invented(rng, (2, 3)).capitalize() + rng.choice(("", "ia", "land", "stan"))
    )
    user = phrase(rng, ASK[:16], c=name)
    text = say(
        rng,
        (
            "I do not know a country called {c}.",
            "I do not know the capital of {c}. I have never heard of that country.",
        ),
        c=name,
    )
    return Turn("unknown", user, text, f"I have never heard of {name}.", Check("unknown"))


def city(rng: random.Random) -> Turn:
    """Where a city is; whether it is in a country; what a place is."""
    kind = rng.choice(("where", "where", "yes_no", "yes_no", "what", "country", "country"))
    if kind == "country":
        name = country(rng)
        user = phrase(
            rng,
            (
                "Tell me about {c}.",
                "What is {c}?",
                "What do you know about {c}?",
                "Describe {c}.",
                "Tell me something about {c}.",
                "What can you tell me about {c}?",
            ),
            c=typed(rng, name),
        )
        text = sentence_case(f"{name} is a country in {CONTINENTS[name]}. Its capital is {CAPITALS[name]}.")
        return Turn(
            "capitals",
            user,
            text,
            f"{sentence_case(name)} is in {CONTINENTS[name]}, with the capital {CAPITALS[name]}.",
            Check("has", [CONTINENTS[name], CAPITALS[name]]),
        )
    place = rng.choice(CITIES if rng.random() < 0.5 else tuple(WORLD_CITIES))
    home = WORLD_CITIES.get(place) or f"the USA, in {_STATE_NAMES.get(US_CITIES[place], US_CITIES[place])}"
    fact = f"{place} is in {home}."
    if kind == "yes_no":
        nation = home.split(",")[0]
        other = nation if rng.random() < 0.5 else rng.choice(tuple(WORLD_CITIES.values()))
        user = phrase(
            rng,
            ("Is {k} in {c}?", "Is {k} a city in {c}?", "Is the city of {k} in {c}?", "{k} is in {c}, right?"),
            k=place,
            c=other,
        )
        answer = "Yes" if other == nation else "No"
        return Turn(
            "yes_no",
            user,
            f"{answer}, {place} is in {nation}.",
            f"{place} is in {nation}.",
            Check("has", [f"{answer},"]),
            short=answer,
        )
    ask = (
        (
            "Where is {k}?",
            "In which country is {k}?",
            "Which country is {k} in?",
            "What country is {k} in?",
            "Where is the city of {k}?",
        )
        if kind == "where"
        else ("What is {k}?", "Tell me about {k}.", "What do you know about {k}?", "Describe {k}.")
    )
    text = fact if kind == "where" else f"{place} is a city in {home}."
    return Turn("capitals", phrase(rng, ask, k=place), text, fact, Check("has", [home]))


def name_countries(rng: random.Random) -> Turn:
    """Name one or several countries of a continent."""
    where = rng.choice(tuple(_TABLE))
    size = rng.choice((1, 1, 2, 3, 4, 5))
    names = rng.sample(
        [name for name in COUNTRIES if CONTINENTS[name] == where and name not in ("the USA", "England")], size
    )
    if size == 1:
        user = phrase(
            rng,
            (
                "Name a country in {w}.",
                "Tell me a country in {w}.",
                "Name one country in {w}.",
                "Give me a country in {w}.",
            ),
            w=where,
        )
        text = sentence_case(f"{names[0]} is a country in {where}.")
    else:
        user = phrase(
            rng,
            (
                "Name {n} countries in {w}.",
                "List {n} countries in {w}.",
                "Give me {n} countries in {w}.",
                "Which {n} countries are in {w}?",
            ),
            n=size,
            w=where,
        )
        text = sentence_case(", ".join(names[:-1]) + f" and {names[-1]} are countries in {where}.")
    return Turn("lists", user, text, f"I look for {size} in {where}.", Check("has", [where]))


def capital_pair(rng: random.Random) -> Turn:
    """Two or three capitals at once."""
    names = rng.sample(FAMILIAR if rng.random() < 0.5 else COUNTRIES, rng.choice((2, 2, 3)))
    joined = ", ".join(typed(rng, name) for name in names[:-1]) + " and " + typed(rng, names[-1])
    user = phrase(
        rng, ("What are the capitals of {c}?", "Name the capitals of {c}.", "Tell me the capitals of {c}."), c=joined
    )
    parts = [f"the capital of {name} is {CAPITALS[name]}" for name in names]
    text = sentence_case(", ".join(parts[:-1]) + f" and {parts[-1]}.")
    thought = "; ".join(f"{name}: {CAPITALS[name]}" for name in names) + "."
    return Turn("capitals", user, text, thought, Check("has", [CAPITALS[name] for name in names]))


def country_of(rng: random.Random) -> Turn:
    """The country that a city is the capital of."""
    name = country(rng)
    while name in ("England", "the USA"):
        name = country(rng)
    city = CAPITALS[name]
    user = phrase(
        rng,
        ("Which country has the capital {k}?", "{k} is the capital of which country?", "Of which country is {k} the capital?",
         "What country is {k} the capital of?", "{k} is the capital of what country?"),
        k=city,
    )  # fmt: skip
    thought = f"{city} is the capital of {name}."
    return Turn("capitals", user, thought, thought, Check("has", [name]), short=sentence_case(name))


def continent(rng: random.Random) -> Turn:
    """The continent of a country."""
    name = country(rng)
    where = CONTINENTS[name]
    user = phrase(
        rng,
        ("On which continent is {c}?", "Which continent is {c} in?", "What continent does {c} belong to?", "Where is {c}?",
         "On what continent is {c}?", "In which part of the world is {c}?"),
        c=typed(rng, name),
    )  # fmt: skip
    text = sentence_case(f"{name} is in {where}.")
    return Turn("capitals", user, text, text, Check("has", [where]), short=where)


def confirm(rng: random.Random) -> Turn:
    """Is this city the capital, or this country on that continent?"""
    name = country(rng)
    if rng.random() < 0.6:
        city = CAPITALS[name] if rng.random() < 0.5 else CAPITALS[country(rng)]
        user = phrase(
            rng,
            (
                "Is {k} the capital of {c}?",
                "Is it true that {k} is the capital of {c}?",
                "{k} is the capital of {c}, right?",
            ),
            k=city,
            c=typed(rng, name),
        )
        right = city == CAPITALS[name]
        text = f"Yes, {city} is the capital of {name}." if right else f"No, the capital of {name} is {CAPITALS[name]}."
    else:
        where = CONTINENTS[name] if rng.random() < 0.5 else rng.choice(tuple(_TABLE))
        user = phrase(
            rng, ("Is {c} in {w}?", "Is {c} a country in {w}?", "Is {c} located in {w}?"), c=typed(rng, name), w=where
        )
        right = where == CONTINENTS[name]
        text = f"Yes, {name} is in {where}." if right else f"No, {name} is in {CONTINENTS[name]}."
    answer = "Yes" if right else "No"
    return Turn("yes_no", user, text, text.split(", ", 1)[1], Check("has", [f"{answer},"]), short=answer)
