"""Numbers, codes and amounts."""

from triforce_chat.lab.tasks.frames.frame import frame

NUMBERS = (
    frame(
        "The secret code of {city} is {digits}.",
        "the secret code of {city}",
        "digits",
        "What is the secret code of {city}?|Which secret code belongs to {city}?"
        "|Tell me the secret code of {city}.",
    ),
    frame(
        "The magic number for {city} that everybody should remember is {digits}.",
        "the magic number for {city}",
        "digits",
        "What is the magic number for {city}?|Which magic number goes with {city}?"
        "|What magic number was given for {city}?",
    ),
    frame(
        "On the lid of the trunk that {person} left behind, somebody had painted the number {digits} in white.",
        "the number painted on the trunk of {person}",
        "digits",
        "What number was painted on the trunk of {person}?|Which number stood on the lid of {person}'s trunk?"
        "|The trunk that {person} left behind bore a number. Which?",
    ),
    frame(
        "To open the vault of {company}, one has to turn the dial to {digits}.",
        "the combination for the vault of {company}",
        "digits",
        "What opens the vault of {company}?"
        "|To which number must the dial of the vault of {company} be turned?"
        "|What is the combination for the vault of {company}?",
    ),
    frame(
        "The access code for Project {project} was changed to {code} last night.",
        "the access code for Project {project}",
        "code",
        "What is the access code for Project {project}?"
        "|To what was the access code of Project {project} changed?"
        "|Which code gives access to Project {project}?",
    ),
    frame(
        "Old {surname} the ferryman counted his savings again: {big} crowns, not one more and not one less.",
        "the fortune of {surname} the ferryman",
        "big",
        "How many crowns had {surname} the ferryman saved?"
        "|How large were the savings of the ferryman {surname}?"
        "|How much money did {surname} the ferryman count?",
    ),
    frame(
        "The {ship} left the harbour with {many} barrels of salt in her hold.",
        "the cargo of salt on the {ship}",
        "many",
        "How many barrels of salt did the {ship} carry?"
        "|With how many barrels of salt did the {ship} leave the harbour?"
        "|How much salt was in the hold of the {ship}?",
    ),
    frame(
        "There are {big} books in the public library of {town}.",
        "the number of books in the library of {town}",
        "big",
        "How many books are in the library of {town}?|How many books does the public library of {town} have?"
        "|What is the number of books in the public library of {town}?",
    ),
    frame(
        "Room {many} at the hotel in {street} was the one that {person} always asked for.",
        "the hotel room of {person}",
        "many",
        "Which hotel room did {person} always ask for?|What was the number of the room that {person} wanted?"
        "|In which room did {person} like to stay?",
    ),
    frame(
        "From {town} to {town2} it is {many} miles by the old road, and nobody takes the new one.",
        "the distance from {town} to {town2}",
        "many",
        "How many miles is it from {town} to {town2}?|How far is {town2} from {town} by the old road?"
        "|What is the distance between {town} and {town2}?",
    ),
    frame(
        "The {profession} of {town} asked {many} florins for the {object}, and would not take less.",
        "the price that the {profession} of {town} asked for the {object}",
        "many",
        "How many florins did the {profession} of {town} ask for the {object}?"
        "|What did the {object} of the {profession} of {town} cost?"
        "|What was the price of the {object} that the {profession} of {town} sold?",
    ),
    frame(
        "Parcel {code} is still waiting for {person} at the counter.",
        "the parcel of {person}",
        "code",
        "Which parcel is waiting for {person}?|What is the number of the parcel for {person}?"
        "|Under what number does the parcel of {person} wait?",
    ),
    frame(
        "The telephone of the {company} office rings at extension {digits}.",
        "the extension of the {company} office",
        "digits",
        "What is the telephone extension of the {company} office?"
        "|At which extension can {company} be reached?"
        "|Which extension does the {company} office have?",
    ),
    frame(
        "When they weighed the {animal} of {person}, the scales showed {many} pounds.",
        "the weight of the {animal} of {person}",
        "many",
        "How many pounds did the {animal} of {person} weigh?|What was the weight of {person}'s {animal}?"
        "|What did the scales show when the {animal} of {person} was weighed?",
    ),
    frame(
        "The tower of {town} has {many} steps; the children count them every Sunday.",
        "the number of steps in the tower of {town}",
        "many",
        "How many steps has the tower of {town}?|What is the number of steps in the tower of {town}?"
        "|How many steps do the children of {town} count in the tower?",
    ),
    frame(
        "Error {code} means that the machine in {city} has run out of water.",
        "the error that the machine in {city} reports when it has no water",
        "code",
        "Which error does the machine in {city} report when it runs out of water?"
        "|What error means that the machine in {city} has no water?"
        "|The machine in {city} has run out of water: which error does it show?",
    ),
)
