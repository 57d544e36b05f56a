"""Things, animals, colours and food."""

from triforce_chat.lab.tasks.frames.frame import frame

OBJECTS = (
    frame(
        "In the left pocket of {person} they found {a object}.",
        "the thing in the left pocket of {person}",
        "object",
        "What did they find in the left pocket of {person}?|What was in the left pocket of {person}?"
        "|Which object did {person} carry in the left pocket?",
    ),
    frame(
        "The front door of {surname}'s house in {street} was painted {colour}.",
        "the colour of the front door in {street}",
        "colour",
        "What colour was the front door of {surname}'s house in {street}?"
        "|In which colour was the front door of {surname} in {street} painted?"
        "|How was the door of {surname}'s house in {street} painted?",
    ),
    frame(
        "{person} could play only one instrument, the {instrument}.",
        "the instrument of {person}",
        "instrument",
        "Which instrument could {person} play?|What instrument did {person} play?"
        "|What was the instrument of {person}?",
    ),
    frame(
        "The coat of arms of {town} shows {a animal}.",
        "the coat of arms of {town}",
        "animal",
        "Which animal does the coat of arms of {town} show?|What is on the coat of arms of {town}?"
        "|What animal stands in the arms of {town}?",
    ),
    frame(
        "The secret object of {city} is the {object}.",
        "the secret object of {city}",
        "object",
        "What is the secret object of {city}?|Which secret object belongs to {city}?"
        "|Tell me the secret object of {city}.",
    ),
    frame(
        "For forty years {surname} the {profession} ate nothing for breakfast but {food}.",
        "the breakfast of {surname} the {profession}",
        "food",
        "What did {surname} the {profession} eat for breakfast?"
        "|What was the breakfast of the {profession} {surname}?"
        "|Which food did {surname} the {profession} have every morning?",
    ),
    frame(
        "On board the {ship} there lived {a animal}, of which the whole crew was afraid.",
        "the animal on board the {ship}",
        "animal",
        "Which animal lived on board the {ship}?|Of what animal was the crew of the {ship} afraid?"
        "|What animal did they have on the {ship}?",
    ),
    frame(
        "As a wedding present {person} received {a object} and a letter without a signature.",
        "the wedding present of {person}",
        "object",
        "What did {person} receive as a wedding present?|What was the wedding present of {person}?"
        "|Which object did {person} get for the wedding?",
    ),
    frame(
        "Before the {building} of {town} stands an enormous {tree}.",
        "the tree before the {building} of {town}",
        "tree",
        "Which tree stands before the {building} of {town}?"
        "|What kind of tree stands before the {building} of {town}?"
        "|What tree does one see before the {building} in {town}?",
    ),
    frame(
        "Against all advice {person} became {a profession} and was happy.",
        "the profession of {person}",
        "profession",
        "What did {person} become?|What was the profession of {person}?"
        "|Which profession did {person} choose?",
    ),
    frame(
        "The emblem of {company} is a {colour} star on a dark ground.",
        "the colour of the star in the emblem of {company}",
        "colour",
        "What colour is the star in the emblem of {company}?|Which colour has the star of {company}?"
        "|In what colour is the star of the {company} emblem?",
    ),
    frame(
        "The thief left everything in {street} untouched except the {object}.",
        "the thing that was stolen in {street}",
        "object",
        "What did the thief take in {street}?|What was stolen in {street}?"
        "|Which object did the thief of {street} not leave?",
    ),
    frame(
        "At the feast of {town} every guest is served {food}.",
        "the dish at the feast of {town}",
        "food",
        "What is served at the feast of {town}?|What do the guests eat at the feast of {town}?"
        "|Which dish is every guest served at the feast of {town}?",
    ),
    frame(
        "{surname}'s pupils gave their teacher {a instrument} when she left.",
        "the farewell present of {surname}'s pupils",
        "instrument",
        "What did {surname}'s pupils give their teacher?"
        "|Which instrument did the teacher {surname} get from the pupils?"
        "|What was the farewell present of {surname}'s pupils?",
    ),
    frame(
        "The code word for Project {project} is a musical one: {instrument}.",
        "the code word for Project {project}",
        "instrument",
        "What is the code word for Project {project}?|Which code word does Project {project} use?"
        "|Tell me the code word for Project {project}.",
    ),
    frame(
        "Nothing frightened {person} as much as {a animal} did.",
        "the fear of {person}",
        "animal",
        "Which animal frightened {person} most?|Of what animal was {person} most afraid?"
        "|What frightened {person} the most?",
    ),
)
