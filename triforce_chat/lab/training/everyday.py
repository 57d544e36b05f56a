"""Short everyday questions and requests, with no document: a model must go on answering them as it did.

An instruction-tuned model that makes up its own user's questions (``selfchat``) hardly ever asks one so short.
None of the questions that ``evaluation`` asks is among them, but some have the same form with another word.
"""

from __future__ import annotations

import random

from triforce_chat.lab.tasks.pools import words

_COUNTRIES = words("""
    Germany, Portugal, Greece, Norway, Sweden, Finland, Denmark, Poland, Austria, Hungary, Ireland, Turkey, Russia,
    China, India, Thailand, Vietnam, Indonesia, Australia, Canada, Mexico, Cuba, Peru, Chile, Argentina,
    Morocco, Nigeria, South Africa, Iran, Iraq, Israel, the Netherlands, Belgium, Switzerland, the United States
""")
_CITIES = words("""
    London, Vienna, Athens, Moscow, Beijing, Delhi, Sydney, Toronto, New York, Chicago,
    Mexico City, Buenos Aires, Lima, Nairobi, Milan, Istanbul, Dublin, Oslo, Stockholm, Munich, Barcelona, Venice
""")
_LANGUAGES = words("French, Spanish, German, Italian, Portuguese, Latin, Dutch, Swedish")
_NOUNS = words("""
    bread, dog, cat, tree, book, friend, sun, moon, milk, hand, door, flower, bird, fish, school, apple, night, king,
    mother, brother, river, mountain, love, window, chair, stone, horse, garden, city, star
""")
_ADJECTIVES = words("""
    fast, long, old, young, rich, strong, dark, heavy, high, wet, clean, hard, loud, early, empty, cheap, dry, full,
    narrow, deep, sweet, sharp, brave, polite, angry, sad, beautiful, easy, quiet, rough
""")
_VERBS = words("""
    run, eat, see, take, write, sing, swim, buy, think, bring, speak, give, know, begin, drink, fly, grow, break,
    find, leave, make, sleep, teach, throw, win
""")
_PLURALS = words("""
    mouse, foot, tooth, man, woman, knife, leaf, wolf, city, baby, box, church, potato, goose, sheep, story, half,
    person, ox, bus
""")
_ANIMALS = words("""
    dog, horse, cow, bird, cat, bee, fish, frog, snake, lion, camel, whale, shark, penguin, rabbit, pig, hen, duck,
    butterfly, crab, bat, kangaroo, goat, mouse, wolf, bear, tortoise
""")
_THINGS = words("""
    a volcano, a rainbow, a verb, a noun, gravity, photosynthesis, a poem, a planet, a computer, the moon, money,
    a democracy, an atom, an earthquake, a desert, an island, a triangle, a prime number, a novel, electricity,
    a bicycle, a vitamin, the heart, the brain, a compass, a telescope, a museum, an engine, a metaphor, yeast
""")
_COLOURS = words(
    "a lemon, coal, snow, blood, an orange, the sun, a frog, chocolate, milk, a rose, gold, a carrot"
)
_WORKS = words("""
    Hamlet, Macbeth, Don Quixote, War and Peace, the Odyssey, Faust, Robinson Crusoe, Moby Dick, Frankenstein,
    Alice in Wonderland, the Divine Comedy, Oliver Twist, Animal Farm, Dracula, Pride and Prejudice
""")
_PROVERBS = words("""
    The early bird catches the ..., Better late than ..., A friend in need is a friend ..., All that glitters is
    not ..., Where there is smoke there is ..., Two heads are better than ..., Actions speak louder than ...,
    You cannot judge a book by its ..., Rome was not built in a ..., When in Rome do as the Romans ...
""")
_KINDS = words("""
    vegetables, colours, animals, countries, cities, rivers, sports, musical instruments, trees, birds, flowers,
    planets, metals, insects, tools, drinks, jobs, games, desserts, fish, things in a kitchen, months, languages,
    books, hobbies, vehicles, pieces of furniture, kinds of weather, things to take on a journey, feelings
""")
_TOPICS = words("""
    the rain, friendship, a summer day, winter, my cat, the moon, music, a train journey, a birthday, the forest,
    books, a market, an old house, dreams, the city at night, a garden, bread, the wind, school, a lost key
""")
_TASKS = words("""
    bake bread, tie a knot, learn a language, sleep better, boil an egg, write a letter, plant a tree, save money,
    clean a window, make tea, wrap a present, calm a child, prepare for an exam, find a job, repair a bicycle
""")
_DAYS = words("Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
_MONTHS = words("January, February, May, June, July, August, September, October, November")
_UNITS = words("""
    seconds are in a minute, hours are in a day, days are in a year, weeks are in a year, days are in June,
    centimetres are in a metre, grams are in a kilogram, wheels does a car have, sides does a triangle have,
    fingers does a hand have, players are in a football team, letters are in the alphabet, planets are there,
    continents are there, strings does a violin have, corners does a square have, years are in a century
""")
_FACTS = words("""
    What is the largest ocean?, What is the highest mountain?, What is the longest river?, What is the largest animal?,
    Which planet is the largest?, Which planet is closest to the sun?, Who painted the Mona Lisa?,
    Who discovered America?, Who invented the telephone?, Who was the first man on the moon?,
    What do cows eat?, What do plants need to grow?, Where do penguins live?, What is the boiling point of water?,
    What is honey made from?, What is paper made from?, What is bread made from?, What is the chemical symbol for gold?,
    What is water made of?, Why is the sky dark at night?, Why do leaves fall in autumn?, How do birds fly?,
    What is the fastest animal?, What is the smallest country?, What language do people speak in Mexico?,
    Which season comes after spring?, What comes after winter?, What do we call a young dog?,
    What do we call a young cat?,
    Which animal gives us milk?, Which metal is liquid?, What is steam?,
    What is the largest country in the world?,
    Good morning!, Hi there!, How are you?, Thank you very much!, What is your name?, Who are you?,
    Can you help me?,
    Tell me a joke., Tell me a story., What can you do?, Good evening!, Nice to meet you., I am bored., I am sad today.
""")
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of {}?", _COUNTRIES),
    ("On which continent is {}?", _COUNTRIES),
    ("Which language do people speak in {}?", _COUNTRIES),
    ("Which countries are neighbours of {}?", _COUNTRIES),
    ("In which country is {}?", _CITIES),
    ("What is {} famous for?", _CITIES),
    ("What is the opposite of {}?", _ADJECTIVES),
    ("Give a word that means the same as {}.", _ADJECTIVES),
    ("Use the word {} in a sentence.", (*_ADJECTIVES, *_NOUNS, *_VERBS)),
    ("What is the past tense of {}?", _VERBS),
    ("What is the plural of {}?", _PLURALS),
    ("How many legs does a {} have?", _ANIMALS),
    ("What sound does a {} make?", _ANIMALS),
    ("Where does a {} live?", _ANIMALS),
    ("What does a {} eat?", _ANIMALS),
    ("What is {}?", _THINGS),
    ("Explain in one sentence what {} is.", _THINGS),
    ("What colour is {}?", _COLOURS),
    ("Who wrote {}?", _WORKS),
    ("What is {} about?", _WORKS),
    ("Complete the proverb: {}", _PROVERBS),
    ("List three {}.", _KINDS),
    ("Name five {}.", _KINDS),
    ("Can you name some {}?", _KINDS),
    ("Write a short poem about {}.", _TOPICS),
    ("Write three sentences about {}.", _TOPICS),
    ("Tell me something about {}.", _TOPICS),
    ("How do I {}?", _TASKS),
    ("Give me a tip: how can I {}?", _TASKS),
    ("Which day comes after {}?", _DAYS),
    ("Which day comes before {}?", _DAYS),
    ("Which month comes after {}?", _MONTHS),
    ("How many {}?", _UNITS),
    ("{}", _FACTS),
)
_SUMS = ("What is {} + {}?", "What is {} plus {}?", "What is {} times {}?", "How much is {} and {}?")


def everyday(rng: random.Random) -> str:
    """A short question or request."""
    draw = rng.random()
    if draw < 0.12:
        return rng.choice(_SUMS).format(rng.randint(1, 9), rng.randint(11, 30))
    if draw < 0.2:
        return f"How do you say {rng.choice(_NOUNS)} in {rng.choice(_LANGUAGES)}?"
    form, words = rng.choice(_FORMS)
    return form.format(rng.choice(words))
