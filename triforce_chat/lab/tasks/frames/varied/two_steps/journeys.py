"""Pairs of statements around ships, ferries, railways, flights, letters, rivers and travellers."""

from triforce_chat.lab.tasks.frames.frame import frames

JOURNEYS = frames("""
    {person} went abroad with the passport of {person2}.
    In the passport of {person2} one reads: born in {town}.
    town:
    - As a native of what town did {person} go abroad?
    - Where did {person} have to pretend to have been born?
    - {person} travels on somebody else's papers: what place of birth is in them?

    On the voyage {person} shared a cabin with {person2}.
    Without a word {person2} left the ship at {town}.
    town:
    - Where did the cabin companion of {person} go ashore?
    - From what town on did {person} have the cabin alone?
    - {person} woke up and the other bed was empty: at which town had the companion got off?

    The trunk of {person} was sent to {inn} by mistake.
    Luggage without an owner is kept {hidden} by the host of {inn}.
    hidden:
    - Where is the trunk of {person} now?
    - In what place should one look for the trunk of {person}?
    - {person} misses a trunk: where has it been put?

    The pigeons of {town} carry their letters to {estate}.
    No letter at {estate} is read before {person} has seen it.
    person:
    - Who first sees what the pigeons of {town} carry?
    - Whose eyes does a letter by pigeon from {town} meet first?
    - A pigeon rises in {town} with a letter: by whom will it be seen first?

    The ferry at {town} is rowed by {person}.
    {person} does not want money, only {food}.
    food:
    - With what does one pay for the ferry at {town}?
    - For which food is one rowed across at {town}?
    - Somebody wants to take the ferry at {town}: what should he have with him?

    {town} lies on the banks of {river}.
    The last salmon was caught in {river} in {year}.
    year:
    - When did they last catch a salmon at {town}?
    - Since what year have there been no salmon at {town}?
    - An angler sits by the water in {town} and waits for salmon: in which year did he come too late?

    The {ship} never enters port without the pilot of {town}.
    To be pilot of {town} was always the dream of {surname}, and it came true.
    surname:
    - Who pilots the {ship}?
    - By whom is the {ship} guided into port?
    - What is the name of the pilot that the {ship} takes?

    The wreck off {town} is the {ship}.
    In her hold the {ship} carried {big} bottles of wine.
    big:
    - How many bottles lie in the wreck off {town}?
    - What number of bottles could a diver bring up near {town}?
    - Somebody dives to the wreck off {town}: how many bottles were there?

    The lightship off {town} has been replaced by the {ship}.
    When it is dark, the {ship} burns a light which is {colour}.
    colour:
    - What colour is the light off {town}?
    - For a light of which colour does one look out at sea near {town}?
    - A captain comes near {town} by night: what colour shows him the way?

    {person} crossed the ocean without a ticket, on the {ship}.
    People without tickets had to peel potatoes on the {ship} for {few} days.
    few:
    - How long did {person} have to peel potatoes?
    - For how many days was {person} kept busy with potatoes?
    - The stowaway {person} was found and given a knife and a sack of potatoes: for how many days?

    Those who travel to {city} spend the night at {inn}.
    In the morning the guests of {inn} are roused by {a instrument}.
    instrument:
    - By what is a traveller to {city} woken?
    - Which instrument does one hear in the morning on the way to {city}?
    - On the way to {city} one is torn from sleep: by which instrument?

    Strangers who want to cross the pass above {town} are led by {person}.
    {person} turns back if {a animal} crosses the path.
    animal:
    - What makes the guide at {town} turn back?
    - At the sight of which animal does one not get across the pass above {town}?
    - A stranger wants to cross the pass above {town}: what animal should he hope not to meet?

    The way through the moor near {town} is shown on the map of {person} and on no other.
    The map of {person} is printed and sold by {company}.
    company:
    - Which firm prints the only map that shows the way through the moor near {town}?
    - Tell me the firm from which one can buy a map for the moor near {town}.
    - Somebody lost his way in the moor near {town}: at what firm should he have bought a map?

    The tunnel below {town} was dug by {company}.
    Under the ground {company} lost {few} men.
    few:
    - How many lives did the tunnel below {town} cost?
    - What number of men died for the tunnel below {town}?
    - There is a memorial by the tunnel below {town}: how many dead does it mourn?

    The balloon from {city} came down on the lawn of {estate}.
    Whoever tramples down the lawn of {estate} is fined {many} crowns.
    many:
    - What did the landing of the balloon from {city} cost?
    - How high was the fine for those in the balloon from {city}?
    - The flight of the balloon from {city} had to be paid for: with how many crowns?

    {person} always spends the holidays at {inn}.
    All that one sees from the windows of {inn} is {a building}.
    building:
    - What does {person} see from the window on holiday?
    - At which building does {person} look during the holidays?
    - {person} is on holiday and opens the shutters: what is to be seen?

    The train to {town} is driven by {person}.
    At every crossing {person} throws {flower} to the children.
    flower:
    - What is thrown from the train to {town}?
    - Which flowers fall from the engine on the line to {town}?
    - Children wait at a crossing for the train to {town}: what will they catch?

    All letters to {person} are steamed open by {person2}.
    {person2} reports once a week to a house in {street}.
    street:
    - Where do they know what is in the letters to {person}?
    - In which street is it reported what people write to {person}?
    - A spy reads the mail of {person}: to what street does he go with it?

    For a bet {person} swam across {river}.
    In that summer {river} was {many} yards wide.
    many:
    - How far did {person} swim?
    - What distance did {person} swim for the bet, in yards?
    - {person} won a bet in the water: how many yards was it from bank to bank?

    {company} flies its passengers to {city} by way of {city2}.
    All the bags are searched in {city2} by Officer {surname}.
    surname:
    - By whom are the bags searched of those who fly to {city} with {company}?
    - Who looks into the luggage on the flights of {company} to {city}?
    - A passenger of {company} to {city} has something to hide: which officer must not find it?

    The oars of the {ship} were bought from {company}.
    For an oar, {company} takes no wood but that of the {tree}.
    tree:
    - Of what wood are the oars of the {ship}?
    - From which tree come the oars of the {ship}?
    - The {ship} needs another oar like the old ones: of what tree must it be made?

    In the fog the {ship} was rammed by the {ship2}.
    The captain of the {ship2} turned out to be {a profession} without any papers.
    profession:
    - What was the captain in truth who rammed the {ship}?
    - By a man of which trade was the {ship} rammed?
    - The {ship} was run into by a false captain: what was he by profession?

    The anchor in the market place of {town} comes from the {ship}.
    In {year} they broke up the {ship} for her wood.
    year:
    - When was the ship broken up whose anchor {town} has?
    - In which year did the ship become firewood whose anchor is in {town}?
    - {town} shows an anchor from an old ship: since what year does she no longer exist?

    {person} rode to the coast on a donkey named {pet}.
    In a village inn {pet} was exchanged for {a object}.
    object:
    - What did {person} get for the donkey?
    - Name the thing for which the donkey of {person} was given away.
    - {person} arrived at the coast without the donkey: what was there in exchange for it?

    From {town} the mail is carried over the ice by {person}.
    The sledge of {person} is drawn by {few} dogs.
    few:
    - How many dogs carry the mail from {town}?
    - By what number of dogs is the mail drawn that leaves {town} over the ice?
    - The mail from {town} comes over the ice: how many dogs does one hear?

    The captain of the {ship} steers by the chart of {person}.
    On the chart of {person} one rock is missing, near {town}.
    town:
    - Near which town might the {ship} strike a rock?
    - Where should the captain of the {ship} not trust the chart?
    - Name the town near which the chart of the {ship} lacks a rock.

    The cabin boy of the {ship} was {surname}.
    Forty years later {surname} was the owner of {estate}.
    estate:
    - What did the cabin boy of the {ship} own in later life?
    - Which house came into the hands of the {ship}'s former cabin boy?
    - Name the estate that belonged in the end to the cabin boy of the {ship}.

    {person} is waiting for a passage to {city}.
    The next to leave for {city} will be the {ship}.
    ship:
    - Which ship is {person} going to take?
    - On board what ship will {person} travel?
    - {person} has packed the trunks: what is the name of the ship to look for?

    There are two ways from {town} to the sea: one is closed, the other goes through {town2}.
    Nobody gets through {town2} before {time}.
    time:
    - How early is there a way from {town} to the sea?
    - From what time on can one travel from {town} to the sea?
    - You would like to go from {town} to the sea: until when will you have to wait?

    The cook of the {ship} learnt the trade at {inn}.
    There is only one thing that they cook at {inn}, and that is {food}.
    food:
    - What can the cook of the {ship} make?
    - Which food did the cook of the {ship} learn to make?
    - You are hungry on board the {ship}: what will the cook put before you?
""")
