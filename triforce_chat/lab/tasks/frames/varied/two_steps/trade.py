"""Pairs of statements around firms, workshops, machines, programs, farms and contracts."""

from triforce_chat.lab.tasks.frames.frame import frames

TRADE = frames("""
    {company} buys the whole of its glue from {company2}.
    {company2} delivers once a year, on {day}.
    day:
    - When does {company} get its glue?
    - On which day will a load of glue reach {company}?
    - If {company} runs out of glue, for what day must it wait?

    Whatever {company} owns has been pledged to {person}.
    Against {person} three lawsuits are going on in {city}.
    city:
    - Where is the creditor of {company} being sued?
    - In which city is the lender in court to whom {company} pledged everything?
    - {company} has a creditor with troubles of his own: in what city must he answer for himself?

    When the pump of {company} gets too hot, {code} appears on the panel.
    As long as {code} can be read, everything must rest for {few} minutes.
    few:
    - How long must an overheated pump rest at {company}?
    - For how many minutes is the pump of {company} stopped after it has grown too hot?
    - The pump of {company} is glowing: how many minutes does it need to cool?

    When the siren sounds, the workers of {company} gather at {inn}.
    From the works to {inn} it is {many} steps.
    many:
    - How far do the workers of {company} have to walk when the siren sounds?
    - After how many steps is a worker of {company} at the place of assembly?
    - The siren howls at {company}: how many steps must everybody take?

    All the lifts of {city} are looked after by {company}.
    The mechanics of {company} come on {day} and on no other day.
    day:
    - When are the lifts in {city} serviced?
    - On which day of the year does a mechanic see to the lifts of {city}?
    - A lift in {city} has begun to creak: until what day does it have to wait?

    The boiler at {estate} was supplied by {company}.
    Boilers from {company} must be emptied after {few} days at the latest.
    few:
    - How often must the boiler at {estate} be emptied?
    - For how many days may the boiler of {estate} be left full?
    - Somebody looks after the boiler at {estate}: after how many days should he drain it?

    The program that reckons the wages of {company} was written by {person}.
    Once a year, on {day}, any program by {person} crashes.
    day:
    - When does the payroll program of {company} crash?
    - On what day should {company} not try to reckon wages?
    - The software for the wages of {company} fails every year: on which day?

    The website of {town} runs on a server that is called {pet}.
    Somebody pulled the plug of {pet} on {date}.
    date:
    - When did the website of {town} go dark?
    - On which day was the plug pulled behind the website of {town}?
    - The website of {town} once stopped all of a sudden: on what date?

    Nobody but {person} may change the software of the {ship}.
    A note with the password of {person} lies {hidden}.
    hidden:
    - Where would one find the password for the software of the {ship}?
    - In what place lies the note that lets one into the software of the {ship}?
    - A spy wants to tamper with the software of the {ship}: where should he look?

    If the drill of {company} breaks, {person} must be sent for.
    {person} cannot be fetched from anywhere but {town}.
    town:
    - Where does {company} send when the drill breaks?
    - Name the town from which help comes for the drill of {company}.
    - The drill of {company} stands still: in what town can a mechanic be found?

    Complaints about {company} are to be made on form {code}.
    Form {code} is handed out by {person} in person.
    person:
    - Who has the form for a complaint about {company}?
    - From whom can one get what one needs to complain about {company}?
    - {company} has cheated a customer: to whom should he turn for the form?

    At the auction the press of {company} went to {person}.
    All the machines of {person} are painted {colour}, even the new ones.
    colour:
    - What colour is the press now that used to be {company}'s?
    - In which colour was the press of {company} painted after the auction?
    - {company} lost its press at an auction: of what colour will it be today?

    The strike at {company} was the work of {person}.
    For a punishment {person} was sent to {town} and not allowed to leave it.
    town:
    - Where was the leader of the strike at {company} sent?
    - To what town was the one banished who had started the strike at {company}?
    - They laid down their tools at {company}: in which town did their leader have to live after that?

    The jingle of {company} on the radio is by {person}.
    {person} writes only for voice and {a instrument}.
    instrument:
    - What plays in the jingle of {company}?
    - By which instrument is the voice accompanied in the jingle of {company}?
    - The radio plays the jingle of {company}: what instrument does one hear?

    The cash box of {company} is in the care of {person}.
    Before going to bed, {person} puts everything of value {hidden}.
    hidden:
    - Where does the cash box of {company} spend the night?
    - In what place should one look for the cash box of {company} after dark?
    - {company} needs its cash box at midnight: where is it?

    {town} has ordered its new signs from {company}.
    Whatever {company} delivers is made of {material}.
    material:
    - What will the signs of {town} be made of?
    - Of which material are the new signs in {town}?
    - A stone hits a new sign in {town}: what material does it hit?

    The fields of {estate} are let to {person}.
    Any land that {person} rents is planted with {flower}.
    flower:
    - What grows in the fields of {estate}?
    - Which flowers does one see on the land of {estate}?
    - With what did the tenant plant the fields of {estate}?

    The milk of {town} is fetched by a carter called {surname}.
    It took the carter {surname} ten years to forget that he had been {a profession}.
    profession:
    - What was the milk carter of {town} before?
    - Do you know which trade the man left who fetches the milk of {town}?
    - As what had the one worked who now drives about with the milk of {town}?

    The mine under {town} is worked by {company}.
    At {company} accidents are announced by somebody who plays {a instrument}.
    instrument:
    - What does one hear in {town} after an accident in the mine?
    - With which instrument is an accident in the mine of {town} announced?
    - Something has happened in the mine under {town}: what instrument tells of it?

    {estate} is insured against fire with {company}.
    For a house that has burnt down {company} pays {big} crowns.
    big:
    - What is paid if {estate} burns down?
    - How much money do the owners of {estate} get after a fire?
    - {estate} lies in ashes: how many crowns will the insurance pay?

    {company} builds its stoves after a patent of {person}.
    {person} never lets anybody use a patent for less than {many} crowns a day.
    many:
    - What does the patent for its stoves cost {company} every day?
    - How many crowns a day must be paid so that {company} may build its stoves?
    - For how much a day can {company} go on making stoves?

    {person} was apprenticed to old {surname2} for seven years.
    Instead of wages the apprentices of old {surname2} get {food}.
    food:
    - What did {person} earn as an apprentice?
    - With which food was the apprentice {person} paid?
    - {person} learnt a trade without ever seeing money: what was there in its place?

    The night shift at {company} is under {person}.
    Nobody may disturb {person} at {time}, for then there is soup.
    time:
    - When does the head of the night shift at {company} eat?
    - At what time should one not disturb whoever leads the night shift of {company}?
    - How late is it when {company}'s night foreman has soup?

    The pills of {person} are made by {company}.
    Pills of {company} only help together with {food}.
    food:
    - With what must {person} take the pills?
    - Which food should be served with {person}'s pills?
    - The nurse brings {person} the pills: what else should be on the tray?

    The lamps in {street} were put up by {company}.
    A lamp of {company} that turns {colour} is about to explode.
    colour:
    - At what colour of the lamps should one run from {street}?
    - Which colour warns the people in {street} that a lamp will burst?
    - A lamp in {street} is going to explode: in what colour does it shine?

    Whoever wants to rent a stable in {street} must talk to {person}.
    {person} is never at home, always at {inn}.
    inn:
    - Where are the stables of {street} let?
    - In which inn can one ask for a stable in {street}?
    - A carter would like to have a stable in {street}: to what inn should he go?

    {person} gave up a good post for Project {project}.
    Those who work on Project {project} are obliged to live in {town}.
    town:
    - Where does {person} have to live now?
    - In which town must {person} take a room?
    - {person} has changed posts: to what town was it necessary to move?

    The roof of the {building} of {town} has been lent to Project {project}.
    After dark Project {project} gives off a glow which is {colour}.
    colour:
    - What colour is the glow above the {building} of {town}?
    - In which colour does the roof of the {building} of {town} shine at night?
    - It is night in {town}, and the {building} glows: in what colour?

    The bricks for the new wing of {estate} were burnt by {company}.
    Each brick of {company} weighs {few} ounces too little.
    few:
    - By how much are the bricks in the new wing of {estate} too light?
    - How many ounces does each brick in {estate}'s new wing lack?
    - The new wing of {estate} is built of bad bricks: what is missing in each, in ounces?

    When a printer in {city} is jammed, one calls {company}.
    {company} answers under {digits} and no other number.
    digits:
    - What number helps when a printer in {city} is jammed?
    - Under which number can one get help with the printers of {city}?
    - No paper comes out of a printer in {city}: what number should be dialled?

    The tractor of {person} is by {company}.
    Whoever needs a spare part from {company} has to write {code} on the order.
    code:
    - What must {person} write on an order for the tractor?
    - Under which code can one get spare parts for {person}'s tractor?
    - The tractor of {person} has broken down: what should be written on the order?

    The code of Project {project} is checked by a program named {pet}.
    Whenever {pet} finds a mistake, it wakes {person}.
    person:
    - Who is woken by mistakes in the code of Project {project}?
    - Whose sleep is disturbed when the code of Project {project} is wrong?
    - Name the person who gets out of bed for mistakes in the code of Project {project}.

    The dam above {town} belongs to {company}.
    In the morning, at {time}, {company} opens all its dams.
    time:
    - When does the water come down to {town}?
    - At what time is it dangerous to stand below the dam of {town}?
    - Do you know when they let the water through above {town}?

    The catalogue of {company} is not its own work but that of {company2}.
    Nothing leaves {company2} without {a animal} on the cover.
    animal:
    - What is on the cover of the catalogue of {company}?
    - Which animal adorns the catalogue of {company}?
    - You hold the catalogue of {company} in your hands: what animal looks at you?

    Two things are made by {company}: buttons, and trouble for {person}.
    {person} — tired of it all — has moved to {town}.
    town:
    - Where does the person live to whom {company} made trouble?
    - Name the town to which somebody was driven by the troubles with {company}.
    - {company} has made somebody's life so hard that only moving helped: where to?
""")
