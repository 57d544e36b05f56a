"""What does not fit into one theme: things, animals, dishes, colours, languages, materials."""

from triforce_chat.lab.tasks.frames.frame import frames

MIXED = frames("""
    {person} prays in {language}, which nobody else in the house understands.
    language: the prayers of {person}
    - In what language does {person} pray?
    - Which language is used by {person} for prayer?
    - {person} kneels down and speaks to God: in which language?
    - What tongue does one hear when {person} prays?

    The roof of {estate} is covered with {material}.
    material: the roof of {estate}
    - What is the roof of {estate} made of?
    - With which material is {estate} roofed?
    - Rain falls on the roof of {estate}: on what material does it fall?
    - Of what does the roof of {estate} consist?

    Somebody puts fresh {flower} on the grave of {person} every week.
    flower: the flowers on the grave of {person}
    - Which flowers lie on the grave of {person}?
    - What is brought to the grave of {person} every week?
    - With what flowers is {person} remembered?
    - What kind of flowers does the unknown visitor choose for the grave of {person}?

    {company} cuts its buttons out of {material}.
    material: the buttons of {company}
    - What are the buttons of {company} made of?
    - Which material does {company} use for buttons?
    - From what material are the buttons cut that {company} sells?
    - Somebody has bought a button of {company}: of what does it consist?

    The smallest taste of {food} is enough to make {person} ill.
    food: what makes {person} ill
    - What must {person} not eat?
    - By which food is {person} made ill?
    - {person} is invited to supper: what should not be on the table?
    - What does {person} not bear, even in small amounts?

    The pawnbroker of {town} lent ten crowns on {a object}.
    object: the pledge at the pawnbroker's of {town}
    - What was pawned in {town}?
    - On which object did the pawnbroker of {town} lend money?
    - For what were ten crowns given in {town}?
    - Which thing was left with the pawnbroker of {town} as a pledge?

    The ambassador sent {a animal} to {city} as a sign of peace.
    animal: the ambassador's sign of peace to {city}
    - What animal arrived in {city} from the ambassador?
    - By the gift of which animal was peace offered to {city}?
    - With what animal did the ambassador try to please {city}?
    - The people of {city} opened the ambassador's box: which animal was in it?

    On the wall of {inn} there is {a animal}, stuffed and eaten by moths.
    animal: the stuffed animal at {inn}
    - Which animal has been stuffed for {inn}?
    - What looks down from the wall on the guests of {inn}?
    - A dead beast hangs on the wall of {inn}: what was it?
    - By what animal is the wall of {inn} adorned?

    The cart of {person} is drawn by {a animal}.
    animal: the cart of {person}
    - What pulls the cart of {person}?
    - Which animal has {person} harnessed to the cart?
    - By what animal is the cart of {person} pulled?
    - {person} comes along with the cart: which animal goes before it?

    At the bow of the {ship} one sees {a object}, carved and gilded.
    object: the carving at the bow of the {ship}
    - What is the figurehead of the {ship}?
    - Which object did the carver make for the bow of the {ship}?
    - By what carving can one tell the {ship} from afar?
    - What does the {ship} bear at her bow?

    The walls of the sickroom at {estate} were painted {colour} to soothe the patients.
    colour: the walls of the sickroom at {estate}
    - What colour is the sickroom at {estate}?
    - In which colour did they paint the walls around the sick at {estate}?
    - A patient at {estate} opens his eyes: what colour are the walls?
    - Of what colour are the walls that soothe the patients at {estate}?

    Having no money, {person} paid the rent with {a object}.
    object: the rent of {person}
    - With what did {person} pay the rent?
    - What did the landlord get from {person} instead of money?
    - Which object was handed over by {person} when the rent was due?
    - The rent was due, and {person} had no money: what did the landlord take?

    All children in {town} have to learn the {instrument} at school.
    instrument: the music lessons in {town}
    - Which instrument is taught at the school of {town}?
    - What do the schoolchildren of {town} play?
    - On which instrument can anybody play who went to school in {town}?
    - By every child in {town} one instrument is learnt. Which?

    The papers of Project {project} are written in {language} throughout.
    language: the papers of Project {project}
    - In what language are the papers of Project {project}?
    - Which language must one know to read about Project {project}?
    - A new clerk is to read the papers of Project {project}: what language should he learn?
    - What language do the writers of Project {project} use?

    The fishermen drew {a object} out of {river}.
    object: the catch of the fishermen in {river}
    - What did the fishermen find in {river}?
    - Which object was caught in {river}?
    - There was no fish in the net from {river}: what was there?
    - By the fishermen something was pulled from {river}. What?

    The new priest of {town} used to be {a profession}.
    profession: the past of the new priest of {town}
    - What was the new priest of {town} before?
    - Which trade did the new priest of {town} follow in earlier years?
    - As what did the new priest of {town} once earn his bread?
    - From what profession did the new priest of {town} come?

    Lightning has split {a tree} by the gate of {estate}.
    tree: the lightning at {estate}
    - Which tree was hit by lightning at {estate}?
    - Into what tree did lightning strike at {estate}?
    - What kind of tree grows by the gate of {estate}?
    - By the gate of {estate} a tree is split in two: what kind of tree?

    On the first day every recruit of {city} is handed {a object}.
    object: the equipment of a recruit of {city}
    - What does a recruit receive in {city}?
    - Which object is given to new soldiers in {city}?
    - With what are recruits equipped in {city}?
    - A young man joins the army in {city}: what is put into his hands?

    In the end there was nothing left on the {ship} but {food}.
    food: the last food on the {ship}
    - What did the sailors of the {ship} have to eat in the end?
    - On which food did the crew of the {ship} live at last?
    - By what were those on the {ship} kept from starving?
    - The stores of the {ship} are almost empty: what remains?
""")
