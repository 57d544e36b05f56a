"""What a report tells of its one subject: statements that belong together, and plain questions about them.

Planted sentences stand out of a novel; in a document that a user brings, what is asked for is told among much of
its kind, and the question does not name the subject by a rare word.
"""

from __future__ import annotations

from triforce_chat.lab.tasks.frames.frame import Frame, frame

SUBJECTS = (
    *("mill", "school", "theatre", "hospital", "railway", "brewery", "bridge", "museum", "mine", "ferry"),
    *("observatory", "library", "orchard", "monastery", "hotel", "shipyard", "newspaper", "orchestra"),
    *(
        "glassworks",
        "post office",
        "fire brigade",
        "zoo",
        "bakery",
        "bank",
        "archive",
        "canal",
        "market hall",
    ),
    *("printing house", "concert hall", "sawmill", "university", "botanical garden", "weather station"),
    *("water tower", "cathedral", "choir", "rowing club", "dairy", "distillery", "paper mill", "tannery"),
)


def _aspect(statements: str, answer: str, questions: str) -> Frame:
    """Each statement says the same, and answers every question: a report takes one of them."""
    return frame(statements, "", answer, questions)


ASPECTS = (
    _aspect(
        "The first director of {it} was {person}, who stayed for {few} years. | {it} got its first director "
        "in {person}, a man of few words. | {person} was appointed the first director of {it}.",
        "person",
        "Who was the first director? | Who was the first director of {it}? | What was the name of the first "
        "director of {it}?",
    ),
    _aspect(
        "{it} was founded by {person}. | The founder of {it} was {person}, who had made a fortune in tea. | "
        "It was {person} who founded {it}, against the advice of the family.",
        "person",
        "Who founded {it}? | Who was the founder? | By whom was {it} founded? | Who was the founder of {it}?",
    ),
    _aspect(
        "{it} was opened on {date}, in heavy rain. | On {date} the doors of {it} were opened to the public. | "
        "The opening took place on {date}; a band played.",
        "date",
        "When was {it} opened? | On what date did the opening take place? | When did {it} open for the first "
        "time?",
    ),
    _aspect(
        "The building cost {big} crowns, more than anybody had expected. | In all, {big} crowns were spent on "
        "the building. | When everything was paid, the building had cost {big} crowns.",
        "big",
        "How much did the building cost? | What did the building cost? | How many crowns were spent on the "
        "building?",
    ),
    _aspect(
        "The repairs of {year} cost {big} crowns. | For the repairs {big} crowns had to be paid. | The bill "
        "for the repairs came to {big} crowns.",
        "big",
        "What did the repairs cost? | How much did the repairs cost? | How high was the bill for the repairs?",
    ),
    _aspect(
        "The worst fire broke out on {date} and burned for two days. | On {date} a fire destroyed the roof. | "
        "The great fire came on {date}, when most people were at the fair.",
        "date",
        "When was the fire? | When did the great fire break out? | On what date did {it} burn?",
    ),
    _aspect(
        "In the great flood of {year} the cellars stood full of water for weeks. | The great flood came in "
        "{year}. | Nobody forgot the great flood of {year}.",
        "year",
        "In which year was the great flood? | When was the great flood? | When did the flood come?",
    ),
    _aspect(
        "The plans were drawn by {person}, an architect from the capital. | The architect was {person}, then "
        "hardly thirty, whose plans were bold. | As architect the committee chose {person}, who drew the "
        "plans in a week.",
        "person",
        "Who was the architect? | Who drew the plans? | Which architect drew the plans? | Who was the "
        "architect of {it}?",
    ),
    _aspect(
        "The chair of the committee is {person} today. | Today {person} presides over the committee. | The "
        "committee is now led by {person}, a retired dentist.",
        "person",
        "Who chairs the committee today? | Who presides over the committee? | Who leads the committee now?",
    ),
    _aspect(
        "{it} stands on a hill above {town}, the nearest town. | The nearest town is {town}, an hour away on "
        "foot. | {it} lies just outside {town}, the nearest town.",
        "town",
        "Near which town does it stand? | Which town is nearest to {it}? | What is the nearest town called?",
    ),
    _aspect(
        "At its best time {many} people worked there. | {it} then employed {many} people. | The staff had "
        "grown to {many} people.",
        "many",
        "How many people worked there? | How many people did {it} employ? | How large was the staff?",
    ),
    _aspect(
        "The main hall is {few} metres long. | Visitors first enter the main hall, which is {few} metres "
        "long. | With its {few} metres the main hall is the longest in the country.",
        "few",
        "How long is the main hall? | How many metres does the main hall measure? | What is the length of the "
        "main hall?",
    ),
    _aspect(
        "A stair of {many} steps leads to the roof. | Whoever wants to see the roof has to climb {many} "
        "steps. | There are {many} steps up to the roof.",
        "many",
        "How many steps lead to the roof? | How many steps does one climb to the roof? | How many steps are "
        "there?",
    ),
    _aspect(
        "{person} gave the money for the building, on the condition that no name be put on the wall. | The "
        "money for the building came from {person}. | Without {person}, who gave the money, there would be no "
        "building.",
        "person",
        "Who gave the money for the building? | Who paid for the building? | From whom did the money for the "
        "building come?",
    ),
    _aspect(
        "The bell came from {city} and has a crack. | In the tower hangs a bell that was cast in {city}. | "
        "The bell was brought from {city} on a sledge.",
        "city",
        "Where does the bell come from? | In which city was the bell cast? | From where was the bell brought?",
    ),
    _aspect(
        "The machines were delivered by {company}. | All machines had been ordered from {company}. | "
        "{company} supplied the machines, six weeks late.",
        "company",
        "Who delivered the machines? | Which company supplied the machines? | From whom were the machines "
        "ordered?",
    ),
    _aspect(
        "The oldest thing in the collection is {a object}. | Nothing in the collection is older than {a "
        "object} from a wreck. | Among all things of the collection {a object} is the oldest.",
        "object",
        "What is the oldest thing in the collection? | Which thing of the collection is the oldest? | What is "
        "older than everything else in the collection?",
    ),
    _aspect(
        "For many years {a animal} lived in the yard and was fed by everybody. | In the yard lived {a "
        "animal}, which slept on the mail bags. | Nobody minded {a animal} that lived in the yard.",
        "animal",
        "Which animal lived in the yard? | What animal was there in the yard? | What kind of animal did they "
        "have in the yard?",
    ),
    _aspect(
        "The walls were painted {colour} at first. | Old pictures show the first walls in {colour}. | At "
        "first the walls were {colour}, which nobody liked.",
        "colour",
        "What colour were the walls at first? | In which colour were the walls painted at first? | What was "
        "the first colour of the walls?",
    ),
    _aspect(
        "Nobody could find the key, which lay {hidden}. | The key was always kept {hidden}. | After the war "
        "the key was discovered {hidden}.",
        "hidden",
        "Where was the key? | Where could the key be found? | Where did the key lie?",
    ),
    _aspect(
        "The boat that brought the stone was called the {ship}. | All stone came by sea, in the {ship}. | It "
        "was the {ship} that carried the stone.",
        "ship",
        "What was the boat called that brought the stone? | Which ship carried the stone? | In which ship did "
        "the stone come?",
    ),
    _aspect(
        "A ticket costs {few} pence. | Visitors pay {few} pence. | The ticket has cost {few} pence ever "
        "since.",
        "few",
        "What does a ticket cost? | How much do visitors pay? | How much is a ticket?",
    ),
    _aspect(
        "Last year it had {big} visitors. | {big} visitors came in the last year that was counted. | The "
        "number of visitors has risen to {big} a year.",
        "big",
        "How many visitors did it have? | How many visitors come in a year? | How many people visited {it}?",
    ),
    _aspect(
        "In {year} {it} was sold to {company}. | {company} bought {it} in hard times. | The buyer of {it} was "
        "{company}.",
        "company",
        "To whom was it sold? | Who bought it? | Which company bought {it}? | Who was the buyer of {it}?",
    ),
    _aspect(
        "It was closed in {year} for want of money. | The doors were shut for good in {year}. | {year} was "
        "its last year.",
        "year",
        "When was it closed? | In which year was {it} closed? | Which was its last year?",
    ),
    _aspect(
        "The second director, {person}, changed everything. | After the first director came {person}. | "
        "{person} followed as the second director.",
        "person",
        "Who was the second director? | Who came after the first director? | Who followed the first director?",
    ),
    _aspect(
        "The accident of {date} cost two lives. | In the accident of {date} two people were hurt. | The only "
        "accident happened on {date}.",
        "date",
        "When did the accident happen? | On what date was the accident? | When was the accident?",
    ),
    _aspect(
        "The inquiry was led by {person}. | {person} was sent to lead the inquiry. | The government put "
        "{person} at the head of the inquiry.",
        "person",
        "Who led the inquiry? | Who was sent to lead the inquiry? | Who was at the head of the inquiry?",
    ),
    _aspect(
        "Work began at {time}, when the whistle was blown. | Every morning work began at {time}. | At {time} "
        "all had to be there, for then work began.",
        "time",
        "When did work begin? | At what time did work begin? | At what time of the morning did work begin?",
    ),
    _aspect(
        "In the yard grows {a tree}, planted by a queen. | The tree in the yard, {a tree}, is older than the "
        "walls. | The yard is shaded by {a tree}.",
        "tree",
        "Which tree grows in the yard? | What kind of tree stands in the yard? | Which tree shades the yard?",
    ),
    _aspect(
        "The kitchen was known for its {food}. | People came from far away for the {food} of the kitchen. | "
        "What made the kitchen famous was its {food}.",
        "food",
        "For what was the kitchen known? | What was the kitchen known for? | Which dish made the kitchen "
        "famous?",
    ),
    _aspect(
        "The first clerk, {person}, wrote in green ink. | As first clerk {person} never made a mistake. | "
        "{person} was engaged as the first clerk.",
        "person",
        "Who was the first clerk? | What was the name of the first clerk? | Who was engaged as the first "
        "clerk?",
    ),
    _aspect(
        "The licence bears the number {code}. | The number of the licence is {code}. | A licence was given "
        "under the number {code}.",
        "code",
        "What is the number of the licence? | Which number does the licence bear? | Under which number was "
        "the licence given?",
    ),
    _aspect(
        "The festival is held on {day}. | Every year on {day} there is a festival. | On {day} the founder's "
        "birthday is kept with a festival.",
        "day",
        "When is the festival? | On which day is the festival held? | When does the festival take place?",
    ),
    _aspect(
        "The engineer lived in {street}. | From a house in {street}, where the engineer lived, one could see "
        "everything. | The home of the engineer was in {street}.",
        "street",
        "Where did the engineer live? | In which street did the engineer live? | Where was the home of the "
        "engineer?",
    ),
    _aspect(
        "The director was also a master of the {instrument}. | In the evening the director played the "
        "{instrument}. | The director played the {instrument} at every feast.",
        "instrument",
        "Which instrument did the director play? | What instrument did the director play? | On which "
        "instrument was the director a master?",
    ),
    _aspect(
        "The storm of {date} took the chimney down. | In the storm of {date} the chimney fell. | On {date} a "
        "storm threw the chimney into the river.",
        "date",
        "When did the storm throw down the chimney? | When was the storm? | On what date did the chimney "
        "fall?",
    ),
    _aspect(
        "The letter of thanks was signed by {person}. | {person} signed the letter of thanks. | Under the "
        "letter of thanks stands the name of {person}.",
        "person",
        "Who signed the letter of thanks? | Whose name stands under the letter of thanks? | By whom was the "
        "letter of thanks signed?",
    ),
    _aspect(
        "The depth of the well is {few} metres. | The well goes down {few} metres. | They had to dig {few} "
        "metres for the well.",
        "few",
        "How deep is the well? | How far does the well go down? | How many metres did they dig for the well?",
    ),
    _aspect(
        "Nobody worked there longer than {person}, who had begun as a child. | {person} worked there longer "
        "than anybody else. | The longest service was that of {person}.",
        "person",
        "Who worked there longest? | Who worked there longer than anybody else? | Whose service was the "
        "longest?",
    ),
)

# Between the statements; they answer nothing.
ASIDES = (
    "Much has been written about this.",
    "The weather was bad in those years.",
    "Nobody remembers how the matter ended.",
    "A photograph of that time hangs in the corridor.",
    "The papers wrote of nothing else.",
    "There were complaints, as always.",
    "The minutes of the meeting have been lost.",
    "Old people still tell the story.",
    "It was not the last quarrel of that kind.",
    "The council was of two minds.",
    "In spring the road was often under snow.",
    "The accounts of that time are full of blots.",
    "Some of this is told differently in the valley.",
    "Children liked to come there after school.",
    "Later things went better.",
    "No one thought of the costs.",
    "What followed surprised everybody.",
    "This has been doubted, but not with good reasons.",
)
HEADINGS = (
    *("Beginnings", "The building", "Hard years", "The people", "What was lost", "Later times", "Today"),
    *(
        "Money",
        "Fire and water",
        "Everyday life",
        "A quarrel",
        "What remains",
        "The long winter",
        "New owners",
    ),
)
