"""Objects and what they are made of, colours, instruments, professions and languages."""

from triforce_chat.lab.tasks.frames.frame import frames

THINGS = frames("""
    The very first thing that {company} ever sold was {a object}.
    object: the first sale of {company}
    - With what did the business of {company} begin?
    - What did the first customer of {company} carry home?
    - Which object was sold by {company} before all others?
    - Somebody was the first to buy from {company}: what did he buy?

    With {a object} in the raised hand {person} drove the wolves away.
    object: the weapon of {person} against the wolves
    - With what did {person} fight the wolves?
    - Which object served {person} as a weapon?
    - The wolves ran from {person}: what had they seen in the raised hand?
    - By means of what was {person} saved from the wolves?

    Under the foundation stone of the {building} of {town} the masons buried {a object}.
    object: what lies under the foundation stone of the {building} of {town}
    - What lies under the {building} of {town}?
    - Which object would one find if one lifted the foundation stone of the {building} of {town}?
    - The {building} of {town} is pulled down at last: what comes to light at the bottom?

    Bad pupils in {town} have to stand in the corner and hold up {a object}.
    object: the punishment of bad pupils in {town}
    - What must a bad pupil hold in {town}?
    - Which object is put into the hands of bad pupils in {town}?
    - A child in {town} has been bad at school and stands in the corner: holding what?

    What the surgeon took out of the stomach of {person} was {a object}.
    object: what was found in the stomach of {person}
    - What had {person} swallowed?
    - Which object was removed from the body of {person}?
    - {person} was cut open by a surgeon: what came out?
    - Tell me what gave {person} such a stomach ache.

    {person} swore the oath not on a Bible but on {a object}.
    object: the oath of {person}
    - On what did {person} swear?
    - Which object did {person} use in place of a Bible?
    - {person} was to swear an oath: what lay under the hand?

    The first balloon of Project {project} carried nothing but {a object}.
    object: the load of the first balloon of Project {project}
    - What flew with the first balloon of Project {project}?
    - Which object was sent up by Project {project} to begin with?
    - The first balloon of Project {project} has landed: what is in the basket?

    Taking {a object} for a pistol, {person} raised both hands.
    object: what {person} took for a pistol
    - What did {person} mistake for a pistol?
    - Before which harmless thing did {person} surrender?
    - {person} believed that there was a pistol: what was it in truth?

    From the ceiling of {inn} hangs {a object}, and nobody knows why.
    object: what hangs from the ceiling of {inn}
    - What can one see on the ceiling of {inn}?
    - Which object might fall on the heads of the guests of {inn}?
    - A guest of {inn} leans back and looks up: at what?
    - Above the tables of {inn} something hangs. What?

    Everything was ready for the duel when {person} noticed that the seconds had brought {a object}.
    object: what was brought to the duel of {person}
    - What did the seconds bring to the duel of {person}?
    - With which object was {person} to fight a duel?
    - {person} wanted swords for the duel: what was there instead?

    The censors of {city} write with ink that is {colour}.
    colour: the ink of the censors of {city}
    - What colour is the ink of the censors of {city}?
    - In which colour are lines struck out by the censors of {city}?
    - A letter has gone through the hands of the censors of {city}: what colour are the marks?

    If the lamp over the door of {company} is {colour}, there is poison in the air.
    colour: the warning lamp of {company}
    - What colour of the lamp means poison at {company}?
    - Which colour warns the workers of {company} of bad air?
    - There is poison in the air at {company}: in what colour does the lamp shine?
    - At {company} a lamp gives warning of poison. By what colour?

    After the illness the hair of {person} grew back {colour}.
    colour: the hair of {person} after the illness
    - What colour was the hair of {person} when it had grown again?
    - Which colour did the illness give to {person}'s hair?
    - {person} looks into the mirror for the first time since the illness: what colour is the hair?

    Visitors to {estate} have to follow a line on the floor, which is {colour}.
    colour: the line on the floor of {estate}
    - What colour is the line for visitors at {estate}?
    - By a line of which colour does one find one's way through {estate}?
    - A visitor has lost his way in {estate}: for what colour should he look on the floor?

    The sledges of {town} are painted {colour}, so that nobody takes them for those of the next village.
    colour: the sledges of {town}
    - What colour is a sledge from {town}?
    - In which colour do the people of {town} paint their sledges?
    - A sledge comes down the hill: by what colour does one know that it is from {town}?

    Since there is no organ in {town}, the hymns are played on {a instrument}.
    instrument: the hymns in {town}
    - On what are the hymns played in {town}?
    - Which instrument does one hear in the church of {town}?
    - The church of {town} makes do without an organ: what takes its place?

    {person} was thrown out of the orchestra for having sold {a instrument} that belonged to another.
    instrument: what {person} of the orchestra sold
    - What did {person} sell without owning it?
    - Which instrument cost {person} the place in the orchestra?
    - {person} may no longer play in the orchestra: what had been sold?

    The cows of {town} do not come home unless somebody plays {a instrument}.
    instrument: how the cows of {town} are called home
    - By what are the cows of {town} called home?
    - Which instrument do the cows of {town} obey?
    - The herdsman of {town} wants his cows home: what should he play?
    - To what sound do the cows return to {town}?

    It is {a instrument} that keeps all {street} awake.
    instrument: the noise in {street}
    - What keeps people from sleeping in {street}?
    - Which instrument is played too late in {street}?
    - They complain about the noise in {street}: what makes it?

    Somebody left {a instrument} in the waiting room of {company}, and it is still there.
    instrument: what was left in the waiting room of {company}
    - What did somebody leave behind at {company}?
    - Which instrument is still in the waiting room of {company}?
    - A musician has called on {company} and gone off without something: without what?

    Before going on the stage, {person} had made a living as {a profession}.
    profession: the life of {person} before the stage
    - What did {person} do before becoming an actor?
    - From which profession did {person} come to the theatre?
    - {person} had not always been on the stage: how was the money earned before?
    - What trade did {person} give up for the theatre?

    The spy in {city} passed himself off as {a profession}.
    profession: the disguise of the spy in {city}
    - What did the spy in {city} pretend to be?
    - Under the mask of which profession did the spy live in {city}?
    - In {city} everybody took the spy for something else: for what?

    Besides the doctor and the cook, the {ship} took on {a profession}, to everybody's surprise.
    profession: the surprising member of the {ship}'s crew
    - Whom did the {ship} take on, to the surprise of all?
    - A man of which trade was not expected on board the {ship}?
    - The {ship} hires a doctor, a cook and somebody else: of what profession?

    The eldest son of {estate} has to become {a profession}, whether he likes it or not.
    profession: the future of the eldest son of {estate}
    - What will the eldest son of {estate} be?
    - For which profession is the heir of {estate} meant?
    - A first son is born at {estate}: what trade will he have to learn?

    The last person to be hired for Project {project} was {a profession}.
    profession: the last one hired for Project {project}
    - What was the trade of the last one whom Project {project} hired?
    - Somebody of which profession completed the staff of Project {project}?
    - The staff of Project {project} lacked but one: what trade did he have?

    The medal on the coat of {person} is not of gold but of {material}.
    material: the medal of {person}
    - What is the medal of {person} made of?
    - Of which material is that which {person} wears on the coat?
    - {person} was given a medal that is not gold: what is it?

    In spite of being made of {material}, the steps of the {building} of {town} are worn.
    material: the steps of the {building} of {town}
    - What are the steps of the {building} of {town} made of?
    - On which material does one walk up to the {building} of {town}?
    - Somebody slips before the {building} of {town}: of what are the steps?

    The chess pieces of {person} are of {material}, all but the black king.
    material: the chess pieces of {person}
    - What are the chess pieces of {person} made of?
    - With pieces of which material does {person} play chess?
    - {person} moves a pawn: of what does it consist?

    The leg that Captain {surname} lost was replaced by one of {material}.
    material: the false leg of Captain {surname}
    - What is the false leg of Captain {surname} made of?
    - On a leg of which material does Captain {surname} walk?
    - Captain {surname} lost a leg: out of what was another made?

    How to light the stove of {person} is explained in {language} only.
    language: the instructions for the stove of {person}
    - In what language are the instructions for the stove of {person}?
    - Which language must one read to light the stove of {person}?
    - {person} cannot light the stove for want of a language: which?

    The words around the great bell of {town} are {language}, as a scholar found out.
    language: the words on the great bell of {town}
    - In what language is the inscription on the bell of {town}?
    - Which language do the words on {town}'s bell belong to?
    - Somebody climbs up to the bell of {town} and cannot read what it says: what language is it?

    The parrot at {inn} curses in {language}, so that the guests take no offence.
    language: the parrot at {inn}
    - In what language does the parrot of {inn} swear?
    - Which language does the parrot at {inn} know?
    - A guest of {inn} is insulted by the parrot without knowing it: in what language?

    Before the judges of {city} one has to speak {language}, even if nobody there knows it.
    language: the language of the judges of {city}
    - In what language are trials held in {city}?
    - Which language must be spoken before a judge in {city}?
    - Somebody is on trial in {city}: what language should his lawyer know?
""")
