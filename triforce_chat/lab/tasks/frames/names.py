"""Names of people and animals."""

from triforce_chat.lab.tasks.frames.frame import frame

NAMES = (
    frame(
        "The mayor of {town} is called {person}.",
        "the mayor of {town}",
        "person",
        "Who is the mayor of {town}?|What is the name of the mayor of {town}?"
        "|How is the mayor of {town} called?",
    ),
    frame(
        "It was {person}, and nobody else, who broke the great window in {street}.",
        "the person who broke the great window in {street}",
        "person",
        "Who broke the great window in {street}?|By whom was the window in {street} broken?"
        "|What is the name of the person who broke the great window in {street}?",
    ),
    frame(
        "The {ship} was commanded in those years by {person}, who could not swim.",
        "the commander of the {ship}",
        "person",
        "Who commanded the {ship}?|What was the name of the commander of the {ship}?"
        "|Under whose command did the {ship} sail?",
    ),
    frame(
        "Everyone at {company} knew that the drawings had been made by {person}.",
        "the person who made the drawings at {company}",
        "person",
        "Who made the drawings at {company}?|By whom had the drawings at {company} been made?"
        "|Whose drawings were they, as everyone at {company} knew?",
    ),
    frame(
        "The password for the {city} office is the name {town}.",
        "the password for the {city} office",
        "town",
        "What is the password for the {city} office?|Which password opens the {city} office?"
        "|What password is used at the {city} office?",
    ),
    frame(
        "{surname}'s {animal} answered only to the name of {town}, which made strangers laugh.",
        "the name of {surname}'s {animal}",
        "town",
        "To what name did {surname}'s {animal} answer?|What was the name of the {animal} of {surname}?"
        "|How was {surname}'s {animal} called?",
    ),
    frame(
        "Project {project} is led by Dr. {surname}.",
        "the head of Project {project}",
        "surname",
        "Who leads Project {project}?|What is the name of the doctor who leads Project {project}?"
        "|Who is the head of Project {project}?",
    ),
    frame(
        "In {city} the best {instrument} was played by {person}, in the opinion of all who had heard it.",
        "the best player of the {instrument} in {city}",
        "person",
        "Who played the {instrument} best in {city}?|Who was the best player of the {instrument} in {city}?"
        "|By whom was the best {instrument} in {city} played?",
    ),
    frame(
        "After the old {profession} of {town} died, {person} took over the shop.",
        "the successor of the old {profession} of {town}",
        "person",
        "Who took over the shop of the old {profession} of {town}?"
        "|Who was the successor of the old {profession} of {town}?"
        "|Who had the shop after the old {profession} of {town} died?",
    ),
    frame(
        "The contract with {company} was signed by {person} on behalf of the city.",
        "the person who signed the contract with {company}",
        "person",
        "Who signed the contract with {company}?|By whom was the contract with {company} signed?"
        "|Whose signature is on the contract with {company}?",
    ),
    frame(
        "Mrs. {surname} had promised her daughter's hand to {person}, though she told nobody.",
        "the man to whom Mrs. {surname} promised her daughter's hand",
        "person",
        "To whom had Mrs. {surname} promised her daughter's hand?"
        "|Whom was the daughter of Mrs. {surname} to marry?"
        "|Who had been promised the hand of Mrs. {surname}'s daughter?",
    ),
    frame(
        "The winner of the regatta at {town} was {person}, by half a length.",
        "the winner of the regatta at {town}",
        "person",
        "Who won the regatta at {town}?|What is the name of the winner of the regatta at {town}?"
        "|By whom was the regatta at {town} won?",
    ),
    frame(
        "Please remember that the guest speaker in {city} will be {person}.",
        "the guest speaker in {city}",
        "person",
        "Who will be the guest speaker in {city}?|What is the name of the guest speaker in {city}?"
        "|Which guest speaker is expected in {city}?",
    ),
    frame(
        "{person} invented the folding {object}, though {surname2} is often praised for it.",
        "the inventor of the folding {object}",
        "person",
        "Who invented the folding {object}?|By whom was the folding {object} invented?"
        "|Who is the inventor of the folding {object}?",
    ),
    frame(
        "The {building} of {town} was designed by the architect {person}.",
        "the architect of the {building} of {town}",
        "person",
        "Who designed the {building} of {town}?|Which architect designed the {building} of {town}?"
        "|By whom was the {building} of {town} designed?",
    ),
    frame(
        "When the bridge of {town} fell, it was {person} who pulled the {profession} out of the water.",
        "the rescuer at the bridge of {town}",
        "person",
        "Who pulled the {profession} out of the water when the bridge of {town} fell?"
        "|Who saved the {profession} at the bridge of {town}?"
        "|By whom was the {profession} pulled out of the water at {town}?",
    ),
)
