"""Towns, streets, houses and corners."""

from triforce_chat.lab.tasks.frames.frame import frames

PLACES = frames("""
    {river} rises in the hills above {town}.
    town: the source of {river}
    - Where is the source of {river}?
    - Near which town does {river} begin?
    - Above what town does {river} come out of the ground?
    - Somebody follows {river} up to its source: to which town does he come?

    Every evening {person} plays cards in {street}.
    street: the game of cards of {person}
    - In which street does {person} spend the evenings?
    - Where does one find {person} at cards?
    - To which street must one go for a game with {person}?
    - It is evening, and {person} is not at home: in what street should one ask?

    The wool that {company} spins is from {town}.
    town: the wool of {company}
    - Where does the wool of {company} come from?
    - Near which town are the sheep shorn for {company}?
    - What town supplies {company} with wool?
    - By which town is wool sent to {company}?

    After the fire the monks of {estate} found shelter in {town}.
    town: the shelter of the monks of {estate}
    - Where did the monks of {estate} go when their house had burned?
    - Which town took in the monks of {estate}?
    - In what town were the monks of {estate} given a roof?
    - The monks of {estate} lost their house by fire: in which town did they stay?

    Pilgrims on their way to {city} rest at {inn}.
    inn: the rest of the pilgrims to {city}
    - At which inn do pilgrims to {city} halt?
    - By what inn are the pilgrims to {city} received?
    - Pilgrims are on the road to {city}: which inn takes them in?
    - Where do those who make a pilgrimage to {city} lie down to sleep?

    {person} swore never to set foot in {city} again.
    city: the oath of {person}
    - To which city will {person} never return?
    - Which city does {person} avoid?
    - Where will nobody meet {person} any more?
    - What city was given up by {person} for ever?

    The honey on the tables of {inn} is from {estate}.
    estate: the honey at {inn}
    - Where does the honey at {inn} come from?
    - On which estate are the bees kept that make the honey for {inn}?
    - The guests of {inn} praise the honey: where was it made?
    - From what house does {inn} have its honey?

    The telegraph line of {company} goes as far as {town} and no farther.
    town: the telegraph line of {company}
    - Where does the telegraph line of {company} end?
    - Which town is the last on the line of {company}?
    - At what town does the wire of {company} come to its end?
    - How far can one telegraph with {company}?

    The deserter {person} kept out of sight {hidden} until the war was over.
    hidden: the hiding place of {person}
    - Where did the deserter {person} hide?
    - In what place was {person} safe until the end of the war?
    - The soldiers search for the deserter {person}: where should they look?
    - What served the deserter {person} as a refuge?

    The deed of {estate} has been tucked away {hidden}.
    hidden: the deed of {estate}
    - In what place has the deed of {estate} been put?
    - Somebody has to prove that {estate} is his: where does he find the deed?
    - Where does the paper lie that says whose {estate} is?
    - What is the hiding place of the deed of {estate}?

    All the ropes on the {ship} were twisted in {town}.
    town: the ropes of the {ship}
    - Where were the ropes of the {ship} made?
    - From which town does the {ship} have her ropes?
    - In what town did the ropemaker of the {ship} work?
    - Which town provided the {ship} with ropes?

    For Project {project} a test ground was laid out near {town}.
    town: the test ground of Project {project}
    - By which town are the trials of Project {project} held?
    - Where is Project {project} tried out?
    - The people of one town hear the blasts of Project {project}: which town?
    - In the fields of what town does Project {project} have its test ground?

    {surname} the {profession} goes to {town} for the waters every spring.
    town: the cure of {surname} the {profession}
    - Where does {surname} the {profession} take the waters?
    - In what town is {surname} the {profession} a guest each spring?
    - By which town's waters is {surname} the {profession} kept in health?
    - It is spring: where is {surname} the {profession}?

    They put the exile {surname} ashore at {town} with a loaf and a blanket.
    town: the landing of the exile {surname}
    - Where was the exile {surname} landed?
    - At which town did {surname} go ashore as an exile?
    - In what town did the exile of {surname} begin?
    - Left with a loaf and a blanket, at which town did {surname} stand?

    The dog {pet} sits {hidden} and waits for its master.
    hidden: the dog {pet}
    - Where does the dog {pet} wait?
    - In what place does {pet} expect its master?
    - The master of the dog {pet} comes home: where is the dog?
    - Where should one look for the dog {pet}?

    During the war the coins of {city} were struck at {estate}.
    estate: the coins of {city}
    - Where was the money of {city} made during the war?
    - To which estate had the mint of {city} been moved?
    - At what house did {city} have its mint in wartime?
    - Whoever had coins of {city} in the war, where had they been minted?

    The council of {town} meets in the {building}, for want of a better room.
    building: the meetings of the council of {town}
    - In which building does the council of {town} meet?
    - Where do the councillors of {town} sit together?
    - Under what roof are the affairs of {town} settled?
    - A citizen of {town} has to speak to the council: to which building must he go?

    The road to {estate} turns off behind {inn}.
    inn: the road to {estate}
    - Behind which inn must one turn off to get to {estate}?
    - Where does the road to {estate} begin?
    - A stranger wants to drive to {estate}: at what inn does he leave the main road?
    - By which inn does one know the turning for {estate}?

    Umbrellas that were left in the trams of {city} are collected in {street}.
    street: the umbrellas left in the trams of {city}
    - In which street is lost property kept in {city}?
    - Where does one get back an umbrella that was forgotten in a tram of {city}?
    - Somebody misses an umbrella after a ride through {city}: to what street should he go?
    - To which street are forgotten umbrellas brought in {city}?
""")
