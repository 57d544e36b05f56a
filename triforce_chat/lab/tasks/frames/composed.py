"""Statements put together from parts, for training only: questions must be understood, not known by heart.

With the written frames alone a trained model answered 79 % of their own questions and 48 % of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from triforce_chat.lab.tasks.frames.frame import Frame


def _rows(text: str) -> tuple[tuple[str, ...], ...]:
    """One row a line, its cells between bars."""
    return tuple(tuple(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines())


# Past tense, participle, what it was done to.
ACTS = _rows("""
    repaired | repaired | the organ of {town}
    painted | painted | the ceiling of the {building} of {town}
    bought | bought | the farm at the end of {street}
    discovered | discovered | the cave below {town}
    wrote | written | the anthem of {city}
    mended | mended | the {object} of {surname2}
    translated | translated | the diary of {person2}
    launched | launched | the {ship}
    closed | closed | the last inn of {town}
    drew | drawn | the oldest map of {town}
    lit | lit | the great lamp of {town}
    measured | measured | the hill behind {town}
    betrayed | betrayed | the secret of {company}
    opened | opened | the museum in {street}
    lost | lost | the silver cup of {town}
    composed | composed | the waltz for {person2}
    carved | carved | the door of the {building} of {town}
    cancelled | cancelled | Project {project}
    inspected | inspected | the cellar of {company}
    forged | forged | the signature of {person2}
    inherited | inherited | the vineyard of {surname2}
    planned | planned | the garden in {street}
    sold | sold | the {animal} of {person2}
    photographed | photographed | the harbour of {town}
    rescued | rescued | the captain of the {ship}
    broke | broken | the record of {surname2} the {profession}
    printed | printed | the first newspaper of {city}
    tested | tested | the engine of Project {project}
    found | found | the lost will of {person2}
    tamed | tamed | the wolf of {town}
""")

# What has a figure, its pool, and how else one asks for it.
FIGURES = _rows("""
    the population of {town} | big | How many people live in {town}?
    the height of the hill near {town} | many | How high is the hill near {town}?
    the number of windows in the {building} of {town} | many | How many windows has the {building} of {town}?
    the account number of {person} | digits | Under which number does {person} have an account?
    the membership number of {person} | code | Which membership number does {person} have?
    the serial number of the {object} of {person} | code | Which serial number has the {object} of {person}?
    the registration of the {ship} | code | Under what registration does the {ship} sail?
    the postal code of {town} | digits | Which postal code does {town} have?
    the age of {person} | few | How old is {person}?
    the rent of the house in {street} | many | How much is the rent of the house in {street}?
    the licence number of {company} | code | Which licence does {company} have?
    the number of workers at {company} | big | How many people work at {company}?
    the budget of Project {project} | big | How much money does Project {project} have?
    the key to the cipher of {person} | digits | Which number is the key to the cipher of {person}?
    the number of guests at the wedding of {person} | many | How many guests did {person} have at the wedding?
    the wage of the {profession} of {town} | many | How much does the {profession} of {town} earn?
    the depth of the lake near {town} | many | How deep is the lake near {town}?
    the number of passengers on the {ship} | many | How many passengers were on the {ship}?
    the PIN of the door in {street} | digits | Which PIN opens the door in {street}?
    the invoice number of {company} | code | Which number has the invoice of {company}?
    the number of sheep that {person} owns | many | How many sheep does {person} own?
    the frequency of the radio station of {city} | digits | On which frequency does the radio of {city} send?
    the length of the wall around {town} | big | How long is the wall around {town}?
    the case number of the trial of {person} | code | Under which number is the trial of {person} filed?
""")

ROLES = _rows("""
    the schoolmaster of {town}
    the owner of the {ship}
    the director of {company}
    the editor of the newspaper of {city}
    the keeper of the archive in {street}
    the sexton of {town}
    the treasurer of {company}
    the judge of {town}
    the godmother of {person2}
    the neighbour of {person2}
    the engineer of Project {project}
    the cook of the {ship}
    the governor of {city}
    the rival of {surname2} the {profession}
    the heir of {person2}
    the banker of {surname2}
    the conductor of the choir of {town}
    the sponsor of Project {project}
    the landlord of the house in {street}
    the founder of the hospital in {city}
    the lawyer of {company}
    the tutor of the children of {surname2}
""")

# Who or what, what it does there, the pool of the place with the word before it, and the verb in questions.
SPOTS = _rows("""
    {person} | lives | in {town} | does {} live
    {person} | studied | in {city} | did {} study
    {person} | died | in {town} | did {} die
    {person} | works | in {street} | does {} work
    the {ship} | was built | in {city} | was {} built
    the {ship} | sank | near {town} | did {} sink
    {company} | makes its goods | in {town} | does {} make its goods
    Project {project} | was begun | in {city} | was {} begun
    the treasure of {surname} | lies | {hidden} | does {} lie
    the will of {person} | was found | {hidden} | was {} found
    the {object} of {person} | is | {hidden} | is {}
    the {animal} of {person} | sleeps | {hidden} | does {} sleep
    the sister of {person} | moved | to {city} | did {} move
    {surname} the {profession} | learnt the trade | in {town} | did {} learn the trade
    the archive of {company} | was moved | to {street} | was {} moved
    the meeting about Project {project} | takes place | in {city} | does {} take place
    the grave of {person} | is | in {town} | is {}
    the money of {company} | was hidden | {hidden} | was {} hidden
    the parents of {person} | met | in {city} | did {} meet
    the statue of {person} | stands | in {street} | does {} stand
""")

# What happens, in a main clause and as a noun phrase, and the verb in questions.
EVENTS = _rows("""
    {person} died | the death of {person} | did {person} die
    the flood reached {town} | the flood of {town} | did the flood reach {town}
    {company} went bankrupt | the bankruptcy of {company} | did {company} go bankrupt
    the {ship} arrived in {city} | the arrival of the {ship} in {city} | did the {ship} arrive in {city}
    {town} received its charter | the charter of {town} | did {town} receive its charter
    Project {project} was announced | the announcement of Project {project} | was Project {project} announced
    {person} left for {city} | the departure of {person} for {city} | did {person} leave for {city}
    the market of {town} was abolished | the end of the market of {town} | was the market of {town} abolished
    {surname} the {profession} retired | the retirement of {surname} | did {surname} the {profession} retire
    the railway came to {town} | the arrival of the railway in {town} | did the railway come to {town}
    {person} won the lottery | the luck of {person} in the lottery | did {person} win the lottery
    the siege of {town} ended | the end of the siege of {town} | did the siege of {town} end
    {company} changed its name | the new name of {company} | did {company} change its name
    the theatre in {street} was opened | the opening of the theatre in {street} | was the theatre in {street} opened
    {person} was arrested | the arrest of {person} | was {person} arrested
""")

# Something of somebody, its pool with the word before it, and how else one asks for it.
THINGS = _rows("""
    the favourite instrument of {person} | the {instrument} | Which instrument does {person} like best?
    the favourite dish of {person} | {food} | What does {person} like to eat most?
    the pet of {person} | {a animal} | Which animal does {person} keep at home?
    the lucky charm of {person} | {a object} | What does {person} carry for luck?
    the colour of the sails of the {ship} | {colour} | What colour are the sails of the {ship}?
    the mascot of {company} | {a animal} | Which animal is the mascot of {company}?
    the prize of the lottery in {town} | {a object} | What can one win in the lottery of {town}?
    the sacred tree of {town} | the {tree} | Which tree is sacred in {town}?
    the speciality of the inn in {street} | {food} | What does the inn in {street} cook best?
    the symbol of Project {project} | {a animal} | Which animal stands for Project {project}?
    the thing that {person} forgot on the train | {a object} | What did {person} forget on the train?
    the colour of the flag of {town} | {colour} | What colour is the flag of {town}?
    the gift of {company} to {person} | {a object} | What did {company} give to {person}?
    the sign above the shop of {person} | {a object} | What hangs above the shop of {person}?
    the cargo of the {ship} | {food} | What does the {ship} carry?
    the tree in the garden of {person} | {a tree} | Which tree grows in the garden of {person}?
    the first present of {person} to {person2} | {a object} | What did {person} give to {person2} first?
    the instrument that is forbidden in {town} | the {instrument} | Which instrument may not be played in {town}?
    the colour of the coat of {person} | {colour} | What colour is the coat of {person}?
""")

# What is told about a person, and questions about somebody who is not named.
TRAITS = _rows("""
    {person} grew up in {city3}. | city3 | In which city did {} grow up? | Where did {} grow up?
    {person} keeps {a animal} in the kitchen. | animal | Which animal does {} keep? | What does {} keep in the kitchen?
    One can call {person} under {digits}. | digits | Under which number can one call {}? | What is the number of {}?
    {person} came into the world on {date}. | date | When was {} born? | What is the birthday of {}?
    {person} likes nothing better than {food}. | food | What does {} like best? | Which food does {} like?
    {person} owns a house in {street3}. | street3 | In which street does {} own a house? | Where does {} own a house?
    {person} practises the {instrument} at night. | instrument | Which instrument does {} play? | What does {} practise?
    The savings of {person} lie {hidden}. | hidden | Where are the savings of {}? | Where does {} keep the savings?
    {person} paid {many} crowns for a horse. | many | What did {} pay for a horse? | How many crowns did {} pay?
    {person} wears a {colour} hat. | colour | What colour is the hat of {}? | Which colour does {} wear?
    {person} arrived here in {year}. | year | In which year did {} arrive? | When did {} arrive?
    {person} has a brother in {town3}. | town3 | In which town is the brother of {}? | Where is the brother of {}?
""")


def _numbers() -> Iterator[Frame]:
    for what, pool, question in FIGURES:
        asked = (question, f"What is {what}?", f"Tell me {what}.", f"What do we learn about {what}?")
        for sentence in (
            f"{what} is {{{pool}}}.",
            f"Somebody had noted {what}: {{{pool}}}.",
            f"Everybody knew that {what} was {{{pool}}}, but nobody said so.",
            f"{{{pool}}} is {what}.",
        ):
            yield Frame((sentence,), what, pool, asked)


def _names() -> Iterator[Frame]:
    for past, done, what in ACTS:
        about = f"the person who {past} {what}"
        asked = (
            f"Who {past} {what}?",
            f"By whom was {what} {done}?",
            f"What is the name of {about}?",
            f"Who was it that {past} {what}?",
        )
        for sentence in (
            f"it was {{person}} who {past} {what}.",
            f"{{person}} {past} {what}, as the older people remember.",
            f"{what} was {done} by {{person}}.",
            f"When {what} was {done}, it was the work of {{person}}.",
        ):
            yield Frame((sentence,), about, "person", asked)
    for (role,) in ROLES:
        named = (f"Who is {role}?", f"What is the name of {role}?", f"Tell me who {role} is.")
        for sentence in (f"{role} is {{person}}.", f"{{person}} is {role}.", f"{role} is called {{person}}."):
            yield Frame((sentence,), role, "person", named)


def _places() -> Iterator[Frame]:
    for who, does, where, verb in SPOTS:
        pool = where.partition("{")[2].rstrip("}")
        asked = tuple(f"{word} {verb.format(who)}?" for word in ("Where", "In what place", "At which place"))
        for sentence in (f"{who} {does} {where}.", f"As is well known, {who} {does} {where} to this day."):
            yield Frame((sentence,), f"the place where {who} {does}", pool, asked)


def _dates() -> Iterator[Frame]:
    happened = [(clause, about, verb) for clause, about, verb in EVENTS]
    happened += [
        (f"{what} was {done}", f"the time when {what} was {done}", f"was {what} {done}")
        for _, done, what in ACTS
    ]
    for clause, about, verb in happened:
        for pool, before, asks in (("year", "in", "In which year"), ("date", "on", "On which day")):
            asked = (
                f"When {verb}?",
                f"{asks} {verb}?",
                f"What does the document give as the time when {clause}?",
            )
            yield Frame((f"{clause} {before} {{{pool}}}.",), about, pool, asked)
            yield Frame((f"it was {before} {{{pool}}} that {clause}.",), about, pool, asked)


def _things() -> Iterator[Frame]:
    for what, value, question in THINGS:
        pool = value.rpartition("{")[2].removeprefix("a ").rstrip("}")
        asked = (question, f"What is {what}?", f"Tell me {what}.")
        for sentence in (
            f"{what} is {value}.",
            f"People say that {what} is {value}.",
            f"They agree that {value} is {what}.",
        ):
            yield Frame((sentence,), what, pool, asked)


def _two_steps() -> Iterator[Frame]:
    for (role,) in ROLES:
        for trait, pool, *questions in TRAITS:
            asked = tuple(question.format(role) for question in questions)
            yield Frame((f"{role} is {{person}}.", trait), "", pool, asked)


COMPOSED: Mapping[str, tuple[Frame, ...]] = MappingProxyType(
    {
        "number": tuple(_numbers()),
        "name": tuple(_names()),
        "place": tuple(_places()),
        "date": tuple(_dates()),
        "object": tuple(_things()),
        "two-step": tuple(_two_steps()),
    }
)
