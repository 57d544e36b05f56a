"""Pairs of statements that answer a question only together."""

from triforce_chat.lab.tasks.frames.frame import frame

TWO_STEPS = (
    frame(
        "The ship {ship} belongs to Captain {surname}.|Captain {surname} grew up in {town}.",
        "",
        "town",
        "In which town did the owner of the {ship} grow up?"
        "|Where did the captain who owns the {ship} grow up?"
        "|Where does the owner of the {ship} come from?",
    ),
    frame(
        "The head of {company} is {person}.|{person} lives in {street}.",
        "",
        "street",
        "In which street does the head of {company} live?|Where does the head of {company} live?"
        "|What is the address of the head of {company}?",
    ),
    frame(
        "The {profession} of {town} is named {surname}.|In the cellar of {surname} there stands {a object}.",
        "",
        "object",
        "What stands in the cellar of the {profession} of {town}?"
        "|Which object is in the cellar of the {profession} of {town}?"
        "|What does the {profession} of {town} have in the cellar?",
    ),
    frame(
        "Project {project} is being built in {town}.|The safe in {town} opens with {digits}.",
        "",
        "digits",
        "What opens the safe in the town where Project {project} is being built?"
        "|Project {project} is built in a town with a safe. Which number opens it?"
        "|Which number opens the safe in the town of Project {project}?",
    ),
    frame(
        "{person} gave the {object} to the teacher {surname}."
        "|The teacher {surname} moved to {city} for good.",
        "",
        "city",
        "To which city did the teacher move who got the {object} from {person}?"
        "|Where did the person move to whom {person} gave the {object}?"
        "|In which city is the teacher to whom {person} gave the {object}?",
    ),
    frame(
        "The gate code for {city} is the same as the one for {town}.|The gate code for {town} is {digits}.",
        "",
        "digits",
        "What is the gate code for {city}?|Which gate code is used for {city}?"
        "|Tell me the gate code for {city}.",
    ),
    frame(
        "The {animal} in the garden of {town} belongs to {person}.|{person} was born in {year}.",
        "",
        "year",
        "In which year was the owner of the {animal} in the garden of {town} born?"
        "|When was the person born to whom the {animal} of {town} belongs?"
        "|What is the year of birth of the owner of the {animal} in {town}?",
    ),
    frame(
        "The portrait in the {building} of {town} shows {person}.|All his life {person} feared {a animal}.",
        "",
        "animal",
        "What did the man in the portrait in the {building} of {town} fear?"
        "|Which animal was feared by the man whose portrait is in the {building} of {town}?"
        "|Of what animal was the man in the portrait in the {building} of {town} afraid?",
    ),
    frame(
        "The {ship} was built by {company}.|The shipyard of {company} is in {city}.",
        "",
        "city",
        "In which city was the {ship} built?|Where was the {ship} built?"
        "|In what city is the yard that built the {ship}?",
    ),
    frame(
        "Locker {many} is reserved for {person}.|The key to locker {many} hangs {hidden}.",
        "",
        "hidden",
        "Where does the key to the locker of {person} hang?|Where is the key to the locker reserved for {person}?"
        "|In what place is the key to {person}'s locker?",
    ),
    frame(
        "The sister of {person} is called {person2}.|{person2} plays the {instrument} in a small orchestra.",
        "",
        "instrument",
        "Which instrument does the sister of {person} play?|What does the sister of {person} play?"
        "|What is the instrument of {person}'s sister?",
    ),
    frame(
        "The winner of the {town} prize was {person}.|With the money {person} bought {a object}.",
        "",
        "object",
        "What did the winner of the {town} prize buy?"
        "|What did the winner buy with the money of the {town} prize?"
        "|Which object was bought by the winner of the {town} prize?",
    ),
    frame(
        "The bakery in {street} is run by {surname}.|What {surname} bakes best is {food}.",
        "",
        "food",
        "What does the baker in {street} bake best?|What is best at the bakery in {street}?"
        "|What should one buy at the bakery in {street}?",
    ),
    frame(
        "The piano of {person} was carried by the {ship}.|The {ship} sank off {town}.",
        "",
        "town",
        "Off which town was the piano of {person} lost?|Where did the ship sink that carried the piano of {person}?"
        "|Near which town did the ship with the piano of {person} sink?",
    ),
    frame(
        "The doctor of {town} is {surname}.|On Sundays {surname} can be reached under {digits}.",
        "",
        "digits",
        "Under which number can the doctor of {town} be reached on Sundays?"
        "|What is the Sunday number of the doctor of {town}?"
        "|How does one reach the doctor of {town} on Sundays?",
    ),
    frame(
        "{person} studied under Professor {surname}.|Professor {surname} taught in {city}.",
        "",
        "city",
        "In which city did {person}'s professor teach?"
        "|Where did the professor teach under whom {person} studied?"
        "|In what city was the professor of {person}?",
    ),
)
