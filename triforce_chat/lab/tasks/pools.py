"""What planted facts are made of: words, invented names, and random figures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

HELD_OUT = 4  # every fourth entry belongs to the test split


def in_split(index: int, split: str) -> bool:
    """Whether the entry at ``index`` of a list belongs to ``split``."""
    return (index % HELD_OUT == HELD_OUT - 1) == (split == "test")


@dataclass(frozen=True, slots=True)
class Words:
    """A list of words; the splits share none."""

    entries: tuple[str, ...]

    def draw(self, rng: random.Random, split: str) -> str:
        return rng.choice([word for i, word in enumerate(self.entries) if in_split(i, split)])


@dataclass(frozen=True, slots=True)
class Joined:
    """Every combination of two lists; a combination's split follows from both of its places."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    between: str = ""

    def draw(self, rng: random.Random, split: str) -> str:
        i = rng.randrange(len(self.first))
        choices = [word for j, word in enumerate(self.second) if in_split(i + j, split)]
        return f"{self.first[i]}{self.between}{rng.choice(choices)}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Random figures, too many to be guessed; the splits need no separation."""

    make: Callable[[random.Random], str]

    def draw(self, rng: random.Random, split: str) -> str:  # noqa: ARG002
        return self.make(rng)


Pool = Words | Joined | Figures


def words(text: str) -> tuple[str, ...]:
    """A list written with commas, over several lines if need be."""
    return tuple(word.strip() for word in text.replace("\n", " ").split(",") if word.strip())


def _digits(rng: random.Random) -> str:
    length = rng.randint(4, 7)
    return str(rng.randrange(10 ** (length - 1), 10**length))


def _lettered(rng: random.Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(2, 3)))
    return f"{letters}{rng.choice(('-', '', ' '))}{rng.randrange(100, 10_000)}"


def _big(rng: random.Random) -> str:
    return f"{rng.randrange(1_001, 99_999):,}"


def _date(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.choice(MONTHS), rng.randint(1700, 1999)
    return rng.choice((f"{day} {month} {year}", f"{month} {day}, {year}"))


MONTHS = words(
    "January, February, March, April, May, June, July, August, September, October, November, December"
)
CITIES = words("""
    Oslo, Lima, Cairo, Turin, Riga, Quito, Osaka, Perth, Lyon, Accra, Dublin, Havana, Hanoi, Minsk, Porto, Tunis,
    Bergen, Seville, Denver, Jakarta, Nairobi, Zagreb, Leipzig, Toronto, Bogota, Krakow, Antwerp, Dakar, Manila,
    Tbilisi, Vilnius, Glasgow, Marseille, Naples, Kyoto, Santiago, Chicago, Helsinki, Beirut, Calgary, Odessa,
    Valencia, Geneva, Lisbon, Prague, Belgrade, Tashkent, Karachi, Mombasa, Boston, Utrecht, Gdansk, Palermo,
    Sofia, Tallinn, Baku, Amman, Algiers, Lagos, Kampala, Harare, Lusaka, Windhoek, Maputo, Rabat, Tripoli,
    Khartoum, Kigali, Colombo, Kathmandu, Dhaka, Yangon, Bangkok, Busan, Sapporo, Taipei, Hobart, Auckland,
    Wellington, Suva, Honolulu, Seattle, Phoenix, Atlanta, Memphis, Quebec, Winnipeg, Halifax, Caracas, Recife,
    Rosario, Montevideo, Asuncion, Sucre, Managua, Bristol, Cardiff, Leeds, Aberdeen, Cork, Galway, Bruges,
    Ghent, Rotterdam, Bremen, Hamburg, Dresden, Salzburg, Graz, Basel, Lausanne, Genoa, Verona, Bologna, Bari,
    Toledo, Granada, Malaga, Coimbra, Malmo, Uppsala, Aarhus, Odense, Tampere, Turku, Tromso, Reykjavik
""")
PLACE_STARTS = words("""
    Pell, Tol, Har, Wend, Brack, Oster, Mar, Quill, Fen, Thorn, Dun, Alder, Cal, Vess, Grim, Hol, Lang, Mor, Nether,
    Pen, Rusk, Sel, Strath, Ulver, Wyn, Yarl, Ash, Bel, Corm, Drun, Elm, Farl, Gos, Hask, Ing, Kel, Lox, Mal, Norr, Oak
""")
PLACE_ENDS = words("""
    wick, mere, stead, holm, ford, bury, vik, combe, haven, gate, brook, field, moor, den, by, low, burn, cross,
    wold, leigh, minster, port, dale, thwaite
""")
FIRST_NAMES = words("""
    Ada, Bruno, Clara, Edgar, Flora, Gideon, Hester, Ivo, Johanne, Klaus, Lydia, Magnus, Nora, Oskar, Petra, Quentin,
    Rosa, Silas, Tamar, Ulrich, Vera, Wanda, Xenia, Yusuf, Zelda, Amos, Birgit, Conrad, Delia, Emil, Frieda, Gustav,
    Hilda, Ingrid, Jasper, Katya, Leopold, Marta, Nadia, Otto, Paloma, Ragnar, Selma, Tobias, Ursula, Viktor, Wilma,
    Anselm, Beatrix, Casimir, Dorothea, Elias, Fatima, Gregor, Helga, Isidor, Jolanda, Konrad, Leonie, Matthias,
    Noemi, Olga, Pascal, Renata, Stefan, Theodora, Umberto, Valeria, Walter, Yvonne, Agnes, Boris, Cecilia, Dmitri,
    Esther, Felix, Greta, Hugo, Irma, Julius
""")
NAME_STARTS = words("""
    Har, Dell, Ferr, Lind, Mor, Brand, Cass, Vold, Ster, Tarr, Wim, Holl, Kest, Fen, Gal, Rav, Ost, Penn, Quar,
    Sorr, Tham, Ull, Varn, Wex, Bram, Corb, Drey, Esk, Fal, Grent, Hask, Jor, Kinn, Lasc, Mend, Nor, Orm, Pask,
    Rusk, Selb
""")
NAME_ENDS = words("""
    lock, ington, qvist, berg, ano, well, mann, ova, ber, ett, ard, eau, ini, sen, fors, ley, ick, ström, aux, holt
""")
SHIP_ADJECTIVES = words("""
    Silver, Northern, Gallant, Quiet, Golden, Restless, Crimson, Faithful, Wandering, Winter, Brave, Hollow, Lucky,
    Emerald, Patient, Stormy, Southern, Ancient, Merry, Pale, Royal, Iron, Drifting, Distant
""")
SHIP_NOUNS = words("""
    Heron, Lantern, Star, Duchess, Dolphin, Meridian, Petrel, Crown, Pilgrim, Swallow, Anchor, Comet, Tern, Maiden,
    Compass, Thistle, Gull, Venture, Wren, Harbinger, Falcon, Tide, Rose, Beacon
""")
PROFESSIONS = words("""
    baker, locksmith, beekeeper, notary, carpenter, astronomer, watchmaker, nurse, gardener, postman, librarian,
    surgeon, tailor, blacksmith, cartographer, organist, fisherman, pharmacist, glassblower, schoolmaster, printer,
    weaver, ferryman, stonemason, innkeeper, miller, archivist, bookbinder, saddler, lighthouse keeper, geologist,
    violin maker, gamekeeper, chimney sweep, translator, dentist, botanist, butcher, cooper, sculptor, sexton,
    tinsmith, interpreter, veterinarian, brewer, engraver, optician, night watchman
""")
ANIMALS = words("""
    otter, heron, badger, tortoise, goat, parrot, hedgehog, raven, donkey, ferret, owl, salamander, peacock, mule,
    lynx, swan, terrier, pony, falcon, hare, iguana, goose, magpie, camel, spaniel, dormouse, rooster, llama,
    greyhound, canary, bear cub, mongoose, squirrel, toad, pelican, monkey, crane, piglet, lamb, wolfhound
""")
OBJECTS = words("""
    brass telescope, ivory comb, copper kettle, silver thimble, pocket watch, leather satchel, glass marble,
    music box, walking stick, pewter mug, velvet glove, paper fan, wooden flute, iron key, amber necklace,
    porcelain doll, oil lamp, ink bottle, sewing box, snuff box, bronze medal, letter opener, magnifying glass,
    straw hat, candlestick, chess set, hourglass, sugar bowl, tin whistle, silk scarf, prayer book, pearl button,
    riding whip, fishing rod, birdcage, compass, hand mirror, teapot, penknife, spyglass, cigar case,
    embroidered cushion, signet ring, copper coin, painted egg, clay pipe, toy soldier, umbrella, corkscrew,
    barometer, pair of scissors, wax seal, globe, lace handkerchief, tobacco pouch, opera glass, hammer, lantern
""")
PLACES = words("""
    under the third step, behind the clock, in the hollow oak, inside the piano, beneath the altar,
    in the well, under the loose floorboard, behind the bakery oven, in the hayloft, inside the grandfather clock,
    under the stone bench, in the coal cellar, behind the waterfall, in the bell tower, under the rose bush,
    inside the flour barrel, behind the tall mirror, in the boathouse, under the mill wheel, in the attic trunk,
    behind the portrait, in the churchyard wall, under the doormat, in the chimney, inside the beehive,
    beneath the fountain, in the wine cellar, behind the bookcase, under the pigeon loft, in the sugar tin,
    inside the statue, behind the stable door, under the bridge, in the rain barrel, in the linen cupboard,
    beneath the sundial, behind the pantry shelf, in the old kiln, under the staircase, in the tool shed
""")
COLOURS = words("""
    scarlet, turquoise, violet, amber, ivory, olive, crimson, indigo, orange, grey, lilac, maroon, teal, yellow,
    green, pink, purple, brown, blue, black, white, silver, golden, beige
""")
INSTRUMENTS = words("""
    cello, bassoon, mandolin, harp, trombone, oboe, zither, accordion, viola, tuba, clarinet, lute, banjo, piccolo,
    double bass, harpsichord, french horn, bagpipe, xylophone, flute, guitar, saxophone, dulcimer, kettledrum
""")
FOODS = words("""
    plum cake, barley soup, smoked eel, goat cheese, rye bread, pickled herring, apple tart, lentil stew, roast duck,
    fig jam, onion pie, candied ginger, mushroom broth, quince jelly, almond biscuits, boiled crab, honey cake,
    pea soup, salted cod, chestnut pudding, sour cherries, poppy seed rolls, baked trout, cabbage rolls,
    rice pudding, walnut bread, stuffed peppers, pear cider, pumpkin pie, mutton chops
""")
BUILDINGS = words("""
    lighthouse, observatory, town hall, cathedral, railway station, mill, theatre, library, customs house, brewery,
    monastery, hospital, museum, windmill, courthouse, granary, orphanage, post office, shipyard, castle,
    school, opera house, market hall, water tower, fire station, tannery, prison, chapel, armoury, guildhall
""")
TREES = words("""
    chestnut, cedar, walnut tree, linden, willow, cypress, mulberry tree, larch, plane tree, fig tree, elm, birch,
    juniper, magnolia, rowan, poplar, cherry tree, yew, maple, olive tree, ash tree, hawthorn, pine, beech
""")
TRADES = words("""
    Shipping, Brothers, Trading, Mills, Foundry, Insurance, Instruments, Chemicals, Airlines, Textiles, Publishing,
    Motors, Railways, Glassworks, Bank, Timber, Electric, Laboratories, Dairy, Paper
""")
STREETS = words("Street, Lane, Road, Row, Square, Hill, Alley, Terrace, Walk, Court, Passage, Gardens")
ESTATE_ENDS = words("House, Hall, Lodge, Abbey, Manor, Court, Grange, Tower")
INN_ADJECTIVES = words("""
    the Red, the Spotted, the Sleepy, the Thirsty, the Blind, the Laughing, the White, the Old, the Crooked,
    the Black, the Jolly, the Dancing
""")
INN_NOUNS = words("Boar, Stag, Ox, Fox, Barrel, Bell, Wheel, Pike, Ram, Cockerel, Plough, Kettle")
RIVER_STARTS = words("""
    the Ald, the Brem, the Cort, the Ess, the Garv, the Ild, the Lomm, the Narr, the Orv, the Pirr, the Rell,
    the Tamm, the Urr, the Vend, the Wess, the Zell
""")
RIVER_ENDS = words("a, er, our, ine, ach, oma, eld, isk")
PET_NAMES = words("""
    Biscuit, Pepper, Bandit, Domino, Ginger, Pirate, Button, Muffin, Whisper, Caesar, Nutmeg, Sorrel, Rascal,
    Duke, Patches, Cricket, Juniper, Smoke, Tinker, Velvet, Rocket, Clover, Poppet, Shadow, Truffle, Vulcan,
    Bramble, Sultan, Dandy, Feather, Thunder, Mustard, Cinders, Jester, Freckles, Nimbus, Raisin, Wotan,
    Lightning, Pudding
""")
LANGUAGES = words("""
    Finnish, Basque, Latin, Welsh, Armenian, Greek, Hungarian, Turkish, Swedish, Persian, Polish, Breton, Danish,
    Georgian, Hebrew, Icelandic, Catalan, Russian, Portuguese, Arabic, Estonian, Romanian, Sanskrit, Gaelic, Dutch,
    Tibetan, Spanish, Albanian
""")
FLOWERS = words("""
    peonies, dahlias, tulips, poppies, lupins, violets, asters, daffodils, snowdrops, marigolds, crocuses, daisies,
    carnations, pansies, hyacinths, foxgloves, geraniums, cornflowers, primroses, orchids, begonias, bluebells,
    gladioli, sunflowers, anemones, lavender stalks, thistles, water lilies
""")
MATERIALS = words("""
    granite, bronze, slate, walnut wood, sandstone, copper, mother-of-pearl, limestone, pewter, bamboo, horn, felt,
    terracotta, whalebone, birch bark, alabaster, leather, zinc, straw, basalt, tortoiseshell, cherry wood,
    porcelain, canvas, cast iron, soapstone, cork, glass
""")
PROJECTS = Joined(
    words(
        "Amber, Cobalt, Granite, Velvet, Arctic, Copper, Lunar, Saffron, Marble, Tundra, Ivory, Neon, Basalt"
    ),
    words(
        "Falcon, Lotus, Harvest, Arrow, Cascade, Sparrow, Anvil, Horizon, Kite, Orchard, Signal, Tiger, Willow"
    ),
    " ",
)
_SURNAMES = Joined(NAME_STARTS, NAME_ENDS)
_TOWNS = Joined(PLACE_STARTS, PLACE_ENDS)


@dataclass(frozen=True, slots=True)
class Persons:
    """First and last names; every part keeps to the split."""

    def draw(self, rng: random.Random, split: str) -> str:
        return f"{Words(FIRST_NAMES).draw(rng, split)} {_SURNAMES.draw(rng, split)}"


def _range(low: int, high: int) -> Figures:
    return Figures(lambda rng: str(rng.randint(low, high)))


POOLS: Mapping[str, Pool | Persons] = MappingProxyType(
    {
        "city": Words(CITIES),
        "town": _TOWNS,
        "person": Persons(),
        "surname": _SURNAMES,
        "ship": Joined(SHIP_ADJECTIVES, SHIP_NOUNS, " "),
        "street": Joined(NAME_STARTS, STREETS, " "),
        "company": Joined(NAME_STARTS, TRADES, "en "),
        "project": PROJECTS,
        "profession": Words(PROFESSIONS),
        "animal": Words(ANIMALS),
        "object": Words(OBJECTS),
        "hidden": Words(PLACES),
        "colour": Words(COLOURS),
        "instrument": Words(INSTRUMENTS),
        "food": Words(FOODS),
        "building": Words(BUILDINGS),
        "tree": Words(TREES),
        "estate": Joined(PLACE_STARTS, ESTATE_ENDS, " "),
        "inn": Joined(INN_ADJECTIVES, INN_NOUNS, " "),
        "river": Joined(RIVER_STARTS, RIVER_ENDS),
        "pet": Words(PET_NAMES),
        "language": Words(LANGUAGES),
        "flower": Words(FLOWERS),
        "material": Words(MATERIALS),
        "digits": Figures(_digits),
        "code": Figures(_lettered),
        "big": Figures(_big),
        "few": _range(12, 98),
        "many": _range(101, 999),
        "year": _range(1503, 1997),
        "date": Figures(_date),
        "day": Figures(lambda rng: f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"),
        "time": Figures(lambda rng: f"{rng.randint(1, 12)}:{rng.randint(10, 59)}"),
    }
)
ORDINARY: Sequence[str] = ("colour", "building")  # may describe several subjects of one document
