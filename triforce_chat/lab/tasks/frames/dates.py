"""Days, years and hours."""

from triforce_chat.lab.tasks.frames.frame import frame

DATES = (
    frame(
        "The {building} of {town} burned down in {year}.",
        "the fire in the {building} of {town}",
        "year",
        "In which year did the {building} of {town} burn down?|When did the {building} of {town} burn down?"
        "|In what year was the fire in the {building} of {town}?",
    ),
    frame(
        "{person} was born on {date}.",
        "the birthday of {person}",
        "date",
        "When was {person} born?|What is the date of birth of {person}?|On which day was {person} born?",
    ),
    frame(
        "{company} was founded in {year} by two brothers who never agreed.",
        "the foundation of {company}",
        "year",
        "In which year was {company} founded?|When was {company} founded?"
        "|What is the founding year of {company}?",
    ),
    frame(
        "The {ship} was last seen on {date}, in calm weather.",
        "the last sighting of the {ship}",
        "date",
        "When was the {ship} last seen?|On which date was the {ship} last seen?"
        "|What was the last day on which the {ship} was seen?",
    ),
    frame(
        "Every year on {day} the people of {town} throw {food} from the tower.",
        "the feast of {town}",
        "day",
        "On which day do the people of {town} throw food from the tower?"
        "|When is the feast of the tower in {town}?"
        "|On what day of the year does {town} celebrate from its tower?",
    ),
    frame(
        "The deadline for Project {project} is {date}.",
        "the deadline for Project {project}",
        "date",
        "What is the deadline for Project {project}?|When must Project {project} be finished?"
        "|By which date must Project {project} be ready?",
    ),
    frame(
        "The night coach to {town} leaves at {time}, never earlier, sometimes later.",
        "the departure of the night coach to {town}",
        "time",
        "At what time does the night coach to {town} leave?|When does the night coach to {town} leave?"
        "|At which hour does the coach to {town} depart at night?",
    ),
    frame(
        "When {person} married the {profession}, it was {year}, and the river stood in the streets.",
        "the wedding of {person} and the {profession}",
        "year",
        "In which year did {person} marry the {profession}?|When did {person} marry the {profession}?"
        "|What year was it when {person} and the {profession} married?",
    ),
    frame(
        "The patent of {surname} on the mechanical {animal} was granted on {date}.",
        "the patent of {surname} on the mechanical {animal}",
        "date",
        "When was the patent of {surname} on the mechanical {animal} granted?"
        "|On which date did {surname} get the patent on the mechanical {animal}?"
        "|What is the date of {surname}'s patent on the mechanical {animal}?",
    ),
    frame(
        "In {year} {surname} the {profession} sold the house in {street} and went abroad.",
        "the sale of the house in {street}",
        "year",
        "In which year was the house in {street} sold?|When was the house in {street} sold?"
        "|What was the year in which the house in {street} changed hands?",
    ),
    frame(
        "The bells of {city} were stolen on {date} and have never been found.",
        "the theft of the bells of {city}",
        "date",
        "When were the bells of {city} stolen?|On which date were the bells of {city} stolen?"
        "|What is the date of the theft of the bells of {city}?",
    ),
    frame(
        "The appointment of {person} with the {profession} is at {time} sharp.",
        "the appointment of {person} with the {profession}",
        "time",
        "At what time is the appointment of {person} with the {profession}?"
        "|When does {person} have to be at the {profession}'s?"
        "|When is the appointment of {person} with the {profession}?",
    ),
    frame(
        "The great {tree} before the {building} of {town} was planted in {year}.",
        "the planting of the great {tree} of {town}",
        "year",
        "In which year was the great {tree} of {town} planted?|When was the great {tree} in {town} planted?"
        "|What year was the great {tree} of {town} planted in?",
    ),
    frame(
        "{person}'s licence to keep {a animal} expires on {date}.",
        "the end of {person}'s licence to keep {a animal}",
        "date",
        "When does {person}'s licence to keep {a animal} expire?"
        "|On which date does the licence of {person} to keep {a animal} end?"
        "|Until when may {person} keep {a animal}?",
    ),
    frame(
        "Electric light came to {town} as late as {year}.",
        "the arrival of electric light in {town}",
        "year",
        "When did electric light come to {town}?|In which year did {town} get electric light?"
        "|What was the year in which electric light came to {town}?",
    ),
    frame(
        "The treaty between {town} and {town2} was signed on {date}.",
        "the treaty between {town} and {town2}",
        "date",
        "When was the treaty between {town} and {town2} signed?"
        "|On which date did {town} and {town2} sign their treaty?"
        "|What is the date of the treaty between {town} and {town2}?",
    ),
)
