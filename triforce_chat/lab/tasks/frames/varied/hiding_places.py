"""Where keys, letters, maps, rings and other things are kept, were found, or were left."""

from triforce_chat.lab.tasks.frames.frame import frames

HIDING_PLACES = frames("""
    The pistol of {person} has been lying {hidden} since the duel.
    hidden: the pistol of {person}
    - Where does {person} keep the pistol?
    - In what place did {person} put away the weapon?
    - There is to be a second duel: where must {person} look for the pistol?
    - Do you know where the firearm of {person} is?

    If the clock of {estate} stops, the key with which to wind it hangs {hidden}.
    hidden: the key with which the clock of {estate} is wound
    - Where does one find what is needed to wind the clock of {estate}?
    - The clock of {estate} has run down: where does its key hang?
    - In which spot do they keep the winding key of {estate}?
    - Somebody has to set the clock of {estate} going again: where does he get the key?

    Nobody but the cook knew that the recipe for the sauce of {inn} was {hidden}.
    hidden: the recipe for the sauce of {inn}
    - Where had the cook put the recipe for the sauce of {inn}?
    - What was the hiding place of the sauce recipe at {inn}?
    - Tell me where the sauce recipe of {inn} was concealed.
    - A spy wants the recipe of the famous sauce of {inn}: where should he search?

    {person} came upon the ring {hidden}, years after it had been given up for lost.
    hidden: the ring that {person} came upon
    - Where did {person} find the ring?
    - In what place had the ring been all the years until {person} discovered it?
    - The ring of {person} turned up again: where?
    - From where did {person} bring the ring to light?

    A map of the mine of {town} is nailed up {hidden}.
    hidden: the map of the mine of {town}
    - Where can one see a map of the mine of {town}?
    - A stranger wants to go down into the mine of {town}: where does he find a map?
    - In which place does the plan of the pits of {town} hang?
    - Tell me where they hung up the drawing that shows the mine of {town}.

    {hidden} the police found what they had been looking for all week: the forged banknotes of {surname}.
    hidden: the forged banknotes of {surname}
    - Where were the false notes of {surname} discovered?
    - In what place did {surname} conceal the counterfeit money?
    - What did {surname} choose as a store for the forged money?
    - The police were after the notes that {surname} had forged: where were they?

    {surname} the {profession} slips the rent {hidden} every month, since the landlord is never at home.
    hidden: the rent of {surname} the {profession}
    - Where does {surname} the {profession} leave the rent?
    - The landlord comes home and wants the money of {surname} the {profession}: where should he reach?
    - In which spot can the landlord pick up what {surname} the {profession} pays?
    - Do you know in what place {surname} the {profession} puts the rent for the landlord?

    It was {hidden} that the child of {person} was found asleep.
    hidden: the sleeping child of {person}
    - Where was the child of {person} discovered?
    - In what place had the lost child of {person} fallen asleep?
    - People searched for the child of {person} everywhere: where did they find it?
    - What place had the child of {person} crept into?

    In case of fire, the papers of {company} are to be carried out first; they are stored {hidden}.
    hidden: the papers of {company}
    - Where are the papers of {company} stored?
    - There is a fire at {company}: where are the papers that must be saved?
    - In what place does {company} keep its documents?
    - Name the place in which the documents of {company} lie.

    Look {hidden}, and you will find the notebook of Project {project}.
    hidden: the notebook of Project {project}
    - Where has the notebook of Project {project} been left?
    - An engineer of Project {project} has mislaid the notebook: where is it?
    - What place holds the notebook of Project {project}?
    - If one wants to read the notes on Project {project}, where does one have to look?

    The smugglers of {town} stacked their tobacco {hidden}, under the nose of the customs officers.
    hidden: the tobacco of the smugglers of {town}
    - Where did the smugglers of {town} keep the tobacco?
    - In which place could the customs officers of {town} have found smuggled goods?
    - What did the smugglers of {town} use as a storehouse?
    - The customs officers of {town} smell tobacco: where does it come from?

    Not in the harness room but {hidden} hangs the bridle of {pet}.
    hidden: the bridle of {pet}
    - Where does one get the bridle of {pet}?
    - A rider wants to bridle {pet}: where should he go for the bridle?
    - In what place does the groom hang what {pet} wears on its head?
    - If the bridle of {pet} is not with the other harness, where is it?

    {person} and {person2} used to leave notes for each other {hidden}.
    hidden: the notes of {person} and {person2}
    - Where did {person} and {person2} exchange their notes?
    - What served {person} and {person2} as a letter box?
    - In which place would one have found the messages of {person} and {person2}?
    - A note from {person} was waiting for {person2}: where was it?

    For safety's sake the crown of {city} spent the war {hidden}.
    hidden: the crown of {city} during the war
    - Where was the crown of {city} kept in wartime?
    - In what place did the crown of {city} survive the war?
    - The enemy looked for the crown of {city} in vain: where had it been put?
    - Where had they brought the crown of {city} so that no enemy should get it?

    The ticket with which {person} was to travel had been left {hidden}.
    hidden: the ticket of {person}
    - Where was the ticket of {person}?
    - The conductor asks {person} for the ticket: where has it stayed behind?
    - In what place did {person} forget the ticket?
    - Where should somebody have looked for the ticket that {person} did not have on the journey?

    {hidden} there is a switch which turns off all the lights at {estate}.
    hidden: the switch for the lights at {estate}
    - Where can one put out all the lights at {estate}?
    - Somebody wants {estate} to be dark at once: where is the switch?
    - In what place does the main switch of {estate} sit?
    - How does one get to the switch that darkens {estate}?

    The medicine chest of the {ship} is fixed {hidden}, where the waves cannot get at it.
    hidden: the medicine chest of the {ship}
    - Where does the {ship} have its medicine chest?
    - A sailor of the {ship} has cut his hand: where are the bandages?
    - In which spot did they put the drugs of the {ship} to keep them dry?
    - Tell me where on the {ship} the doctor's things are kept.

    "The fuses," whispered the caretaker of the house in {street}, "are {hidden}."
    hidden: the fuses of the house in {street}
    - Where are the fuses of the house in {street}?
    - The light has gone out in the house in {street}: where does one find the fuses?
    - In what place must the electrician look in the house in {street}?
    - What did the caretaker in {street} say about the place of the fuses?

    When the soldiers came, the people of {town} lowered their church silver {hidden}.
    hidden: the church silver of {town}
    - Where did the people of {town} hide their church silver?
    - In what place was the silver of the church of {town} safe from the soldiers?
    - The soldiers found no silver in the church of {town}: where was it?
    - To which place had the treasure of the church of {town} been taken?

    Of all places, the hen of {person} lays its eggs {hidden}.
    hidden: the eggs that the hen of {person} lays
    - Where does the hen of {person} lay?
    - {person} would like an egg for breakfast: where should one look?
    - In which place has the hen of {person} made its nest?
    - From where does {person} fetch the eggs?

    A draught blows through {estate} because of a crack {hidden}.
    hidden: the crack that causes the draught at {estate}
    - Where does the cold air enter {estate}?
    - Whoever wants to stop the draught at {estate}, where must he look for the crack?
    - In what place is there a crack through which the wind gets into {estate}?
    - A mason is called to {estate} about a draught: where is the damage?

    Whoever reads the gas meter of {company} has to look {hidden}, for that is where it was put.
    hidden: the gas meter of {company}
    - Where is the gas meter of {company}?
    - In which odd spot was the gas meter of {company} installed?
    - A man comes to {company} to see how much gas was burnt: where must he read it off?
    - What place did they find for the gas meter of {company}?

    Until the trial the knife had been {hidden}, and {person} knew it all along.
    hidden: the knife of which {person} knew
    - In what place was the knife that the court wanted, as {person} was aware?
    - Where could {person} have told the court to look for the knife?
    - The judge asks {person} about the knife: where had it been?
    - Can you say what hiding place of a knife {person} knew of?

    {person} dropped both gloves {hidden} and never dared to go back for them.
    hidden: the lost gloves of {person}
    - Where did {person} lose the gloves?
    - In what place do the gloves of {person} still lie?
    - The hands of {person} are cold: where are the gloves?
    - From where was {person} afraid to fetch the gloves?

    Each Easter the children of {estate} first search {hidden}, and each Easter they are right.
    hidden: the Easter eggs of {estate}
    - Where are the Easter eggs at {estate}?
    - In which place do the children of {estate} find something every Easter?
    - It is Easter at {estate}: where do the children run first?
    - Do you know where eggs are hidden year after year at {estate}?

    The manuscript on which {surname} had worked for a lifetime was gnawed by mice {hidden}.
    hidden: the manuscript of {surname}
    - Where did mice get at the manuscript of {surname}?
    - In what place had the book of {surname} been left to the mice?
    - Where had the work of a lifetime been lying when it was eaten, to the grief of {surname}?
    - Name the place in which {surname}'s manuscript was spoilt.
""")
