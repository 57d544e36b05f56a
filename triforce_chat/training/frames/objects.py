"""Things, animals, colours and food."""

from triforce_chat.training.frames.frame import frame

OBJECTS = (
    frame(
        "In the left pocket of {person} they found {a object}.",
        "the thing in the left pocket of {person}",
        "object",
        "What did they find in the left pocket of {person}?|What was in the left pocket of {person}?"
        "|Which object did {person} carry in the left pocket?",
        "They found {a object}.|In the left pocket of {person} was {a object}.",
    ),
    frame(
        "The front door of {surname}'s house in {street} was painted {colour}.",
        "the colour of the front door in {street}",
        "colour",
        "What colour was the front door of {surname}'s house in {street}?"
        "|In which colour was the front door of {surname} in {street} painted?"
        "|How was the door of {surname}'s house in {street} painted?",
        "The front door was {colour}.|It was painted {colour}.",
    ),
    frame(
        "{person} could play only one instrument, the {instrument}.",
        "the instrument of {person}",
        "instrument",
        "Which instrument could {person} play?|What instrument did {person} play?"
        "|What was the instrument of {person}?",
        "{person} could play the {instrument}.|It was the {instrument}.",
    ),
    frame(
        "The coat of arms of {town} shows {a animal}.",
        "the coat of arms of {town}",
        "animal",
        "Which animal does the coat of arms of {town} show?|What is on the coat of arms of {town}?"
        "|What animal stands in the arms of {town}?",
        "The coat of arms of {town} shows {a animal}.|It shows {a animal}.",
    ),
    frame(
        "The secret object of {city} is the {object}.",
        "the secret object of {city}",
        "object",
        "What is the secret object of {city}?|Which secret object belongs to {city}?"
        "|Tell me the secret object of {city}.",
        "The secret object of {city} is the {object}.|It is the {object}.",
    ),
    frame(
        "For forty years {surname} the {profession} ate nothing for breakfast but {food}.",
        "the breakfast of {surname} the {profession}",
        "food",
        "What did {surname} the {profession} eat for breakfast?"
        "|What was the breakfast of the {profession} {surname}?"
        "|Which food did {surname} the {profession} have every morning?",
        "{surname} the {profession} ate {food}.|The breakfast was {food}.",
    ),
    frame(
        "On board the {ship} there lived {a animal}, of which the whole crew was afraid.",
        "the animal on board the {ship}",
        "animal",
        "Which animal lived on board the {ship}?|Of what animal was the crew of the {ship} afraid?"
        "|What animal did they have on the {ship}?",
        "On board the {ship} lived {a animal}.|It was {a animal}.",
    ),
    frame(
        "As a wedding present {person} received {a object} and a letter without a signature.",
        "the wedding present of {person}",
        "object",
        "What did {person} receive as a wedding present?|What was the wedding present of {person}?"
        "|Which object did {person} get for the wedding?",
        "{person} received {a object}.|The present was {a object}.",
    ),
    frame(
        "Before the {building} of {town} stands an enormous {tree}.",
        "the tree before the {building} of {town}",
        "tree",
        "Which tree stands before the {building} of {town}?"
        "|What kind of tree stands before the {building} of {town}?"
        "|What tree does one see before the {building} in {town}?",
        "Before the {building} of {town} stands the {tree}.|It is an enormous {tree}.",
    ),
    frame(
        "Against all advice {person} became {a profession} and was happy.",
        "the profession of {person}",
        "profession",
        "What did {person} become?|What was the profession of {person}?"
        "|Which profession did {person} choose?",
        "{person} became {a profession}.|{person} was {a profession}.",
    ),
    frame(
        "The emblem of {company} is a {colour} star on a dark ground.",
        "the colour of the star in the emblem of {company}",
        "colour",
        "What colour is the star in the emblem of {company}?|Which colour has the star of {company}?"
        "|In what colour is the star of the {company} emblem?",
        "The star of {company} is {colour}.|It is {colour}.",
    ),
    frame(
        "The thief left everything in {street} untouched except the {object}.",
        "the thing that was stolen in {street}",
        "object",
        "What did the thief take in {street}?|What was stolen in {street}?"
        "|Which object did the thief of {street} not leave?",
        "The thief took the {object}.|In {street} the {object} was stolen.",
    ),
    frame(
        "At the feast of {town} every guest is served {food}.",
        "the dish at the feast of {town}",
        "food",
        "What is served at the feast of {town}?|What do the guests eat at the feast of {town}?"
        "|Which dish is every guest served at the feast of {town}?",
        "At the feast of {town} they serve {food}.|Every guest is served {food}.",
    ),
    frame(
        "{surname}'s pupils gave their teacher {a instrument} when she left.",
        "the farewell present of {surname}'s pupils",
        "instrument",
        "What did {surname}'s pupils give their teacher?"
        "|Which instrument did the teacher {surname} get from the pupils?"
        "|What was the farewell present of {surname}'s pupils?",
        "They gave her {a instrument}.|The present was {a instrument}.",
    ),
    frame(
        "The code word for Project {project} is a musical one: {instrument}.",
        "the code word for Project {project}",
        "instrument",
        "What is the code word for Project {project}?|Which code word does Project {project} use?"
        "|Tell me the code word for Project {project}.",
        "The code word for Project {project} is {instrument}.|It is {instrument}.",
    ),
    frame(
        "Nothing frightened {person} as much as {a animal} did.",
        "the fear of {person}",
        "animal",
        "Which animal frightened {person} most?|Of what animal was {person} most afraid?"
        "|What frightened {person} the most?",
        "{person} was most afraid of {a animal}.|It was {a animal}.",
    ),
)
