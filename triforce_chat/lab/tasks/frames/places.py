"""Places where something is or was."""

from triforce_chat.lab.tasks.frames.frame import frame

PLACES = (
    frame(
        "Mrs. {surname} had hidden the {object} {hidden}, as everyone in {street} knew.",
        "the {object} of Mrs. {surname}",
        "hidden",
        "Where had Mrs. {surname} hidden the {object}?|Where was the {object} of Mrs. {surname}?"
        "|In what place did Mrs. {surname} hide the {object}?",
    ),
    frame(
        "The headquarters of {company} are in {city}.",
        "the seat of {company}",
        "city",
        "In which city are the headquarters of {company}?|Where does {company} have its headquarters?"
        "|Where are the headquarters of {company}?",
    ),
    frame(
        "That winter the {ship} lay at anchor off {town}, waiting for the ice to break.",
        "the wintering of the {ship}",
        "town",
        "Where did the {ship} lie at anchor that winter?"
        "|Off which town did the {ship} wait for the ice to break?"
        "|Where did the {ship} spend the winter?",
    ),
    frame(
        "The spare key for the {building} of {town} is kept {hidden}.",
        "the spare key for the {building} of {town}",
        "hidden",
        "Where is the spare key for the {building} of {town} kept?"
        "|Where can one find the spare key of the {building} in {town}?"
        "|In what place is the spare key for the {building} of {town}?",
    ),
    frame(
        "{person} spent the last summer of the war in {town}.",
        "the summer of {person}",
        "town",
        "Where did {person} spend the last summer of the war?"
        "|In which town was {person} in the last summer of the war?"
        "|In what place did {person} spend that last summer?",
    ),
    frame(
        "The great {profession} contest will be held in {city} this time.",
        "the great {profession} contest",
        "city",
        "In which city will the great {profession} contest be held?"
        "|Where will the {profession} contest be held?|Where is the great {profession} contest this time?",
    ),
    frame(
        "The best thing to do in {city} is to eat {food} under the old {tree}.",
        "the best thing to do in {city}",
        "food",
        "What should one eat in {city} under the old tree?|What is the best thing to eat in {city}?"
        "|According to the advice, what does one eat in {city}?",
    ),
    frame(
        "The train from {town} stops for an hour at {town2} before it goes on.",
        "the long stop of the train from {town}",
        "town2",
        "Where does the train from {town} stop for an hour?|At which station does the train from {town} wait?"
        "|In what place does the train from {town} stand for an hour?",
    ),
    frame(
        "{person} buried the {object} {hidden} and never spoke of it again.",
        "the {object} that {person} buried",
        "hidden",
        "Where did {person} bury the {object}?|Where is the {object} that {person} buried?"
        "|In what place did {person} bury the {object}?",
    ),
    frame(
        "The family of the {profession} {surname} came from {town}, far beyond the hills.",
        "the home of the family of the {profession} {surname}",
        "town",
        "Where did the family of the {profession} {surname} come from?"
        "|From which town came the family of {surname} the {profession}?"
        "|What was the home of the family of the {profession} {surname}?",
    ),
    frame(
        "The servers for Project {project} were moved to {city} during the night.",
        "the place of the servers for Project {project}",
        "city",
        "To which city were the servers for Project {project} moved?"
        "|Where are the servers for Project {project} now?"
        "|Where were the servers of Project {project} moved to?",
    ),
    frame(
        "In {street} you will find the shop of {person}, next to the {building}.",
        "the shop of {person}",
        "street",
        "In which street is the shop of {person}?|Where will you find the shop of {person}?"
        "|Where does {person} have a shop?",
    ),
    frame(
        "The picture of the {colour} {animal} hangs in the {building} of {town}, where few have seen it.",
        "the picture of the {colour} {animal}",
        "town",
        "In which town does the picture of the {colour} {animal} hang?"
        "|Where does the picture of the {colour} {animal} hang?"
        "|Where can one see the picture of the {colour} {animal}?",
    ),
    frame(
        "Captain {surname} was born in {town}, in a house that the sea has taken since.",
        "the birthplace of Captain {surname}",
        "town",
        "Where was Captain {surname} born?|In which town was Captain {surname} born?"
        "|What is the birthplace of Captain {surname}?",
    ),
    frame(
        "You must look for the letters of {person} {hidden}.",
        "the hiding place of {person}'s letters",
        "hidden",
        "Where are the letters of {person}?|Where must one look for the letters of {person}?"
        "|In what place are the letters of {person} to be found?",
    ),
    frame(
        "The next office of {company} will be opened in {city}, the board decided.",
        "the next office of {company}",
        "city",
        "Where will {company} open its next office?"
        "|In which city will the next office of {company} be opened?"
        "|For which city did the board of {company} decide?",
    ),
)
