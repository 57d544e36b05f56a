"""Pairs of statements around a person, a firm, a house, an inn, a river, a ship, an animal or a language."""

from triforce_chat.lab.tasks.frames.frame import frames

MIXED = frames("""
    {person} inherited {estate} from an aunt.
    In the park of {estate} there is {a tree} older than the house.
    tree:
    - Which tree stands in the park that {person} inherited?
    - {person} inherited a house with a park: what tree grows there?
    - Under what tree can {person} sit in the inherited park?

    The wheels of {company} are turned by {river}.
    {river} flows into the sea at {town}.
    town:
    - Where does the river that turns the wheels of {company} flow into the sea?
    - By which town is the mouth of the river that {company} uses?
    - A barrel falls into the river at {company}: near what town does it reach the sea?

    The host of {inn} is {person}.
    When {person} sings at work, it is in {language}.
    language:
    - In which language does the host of {inn} sing?
    - What language are the songs in that one hears from the host of {inn}?
    - The host of {inn} is singing: in what language?

    The {ship} was fitted out for Project {project}.
    Whoever works for Project {project} gets {few} crowns a week.
    few:
    - What is the weekly pay on the {ship}?
    - How many crowns a week are paid by the project for which the {ship} was fitted out?
    - A sailor signs on with the {ship} and her project: how much will he earn in a week?

    The mare {pet} was bred by {person}.
    The scarf that {person} wears at the races is {colour}.
    colour:
    - What colour is the scarf of the breeder of {pet}?
    - By a scarf of which colour can one find the breeder of {pet} at the races?
    - The mare {pet} was bred by somebody with a scarf: of what colour?

    All the workshops in {street} belong to {company}.
    The hammers of {company} are silent until {time}.
    time:
    - At what time does the hammering begin in {street}?
    - Until when is it quiet in the workshops in {street}?
    - Somebody wants to sleep late in {street}: at what time will the hammers wake him?

    The debts of {person} were paid by {person2}.
    {person2} got rich by selling {food}.
    food:
    - What was sold by the benefactor who paid the debts of {person}?
    - With which food did the person make a fortune who paid for {person}?
    - Somebody paid the debts of {person}: where did the money come from, what was sold?

    The children of {town} are sent to school at {estate}.
    Only {language} may be spoken at {estate}.
    language:
    - In which language are the children of {town} taught?
    - What language must schoolchildren from {town} speak?
    - A child from {town} answers the teacher: in what language must that be?

    {company} has moved all its clerks to {city}.
    In {city} nobody works after {time}.
    time:
    - At what time do the clerks of {company} stop working?
    - By what hour are the clerks of {company} free?
    - One has to catch a clerk of {company} at work: until what time can one do so?

    {inn} stands on the bank of {river}.
    In spring {river} rose by {few} feet.
    few:
    - By how many feet did the water at {inn} rise?
    - How far did the river rise on whose bank {inn} stands?
    - The cellar of {inn} was flooded in spring: how many feet higher was the river?

    The barber of {town} is old {surname}.
    For a shave and the news old {surname} takes {few} pence.
    few:
    - What does the barber of {town} charge?
    - How much must be paid for a shave in {town}?
    - Somebody in {town} wants to be rid of his beard: how many pence will it cost?

    The {ship} is insured with {company}.
    Claims against {company} are heard in {city}.
    city:
    - In which city are claims against the insurer of the {ship} heard?
    - If the {ship} goes down, in what city must her owner ask for the money?
    - The {ship} has been damaged: to which city does one go with a claim?

    The accounts of Project {project} are kept by {person}.
    Since the quarrel at home {person} has lodged at {inn}.
    inn:
    - At which inn does the bookkeeper of Project {project} lodge?
    - Somebody has a question about the accounts of Project {project}: at what inn should he knock?
    - Where is the person lodged by whom the accounts of Project {project} are kept?

    The {object} on the mantelpiece of {estate} is the work of {person}.
    In {year} {person} lost the sight of one eye.
    year:
    - When did the maker of the {object} of {estate} lose an eye?
    - In which year was the person half blinded who made the {object} at {estate}?
    - Since what year has the maker of the {object} at {estate} had only one eye?

    {estate} draws its water from {river}.
    {river} is dammed up at {town}.
    town:
    - At which town is the river dammed up from which {estate} draws its water?
    - Where is the dam on the river of {estate}?
    - The pipes of {estate} are dry because a dam was shut: near what town is it?

    Letters to {city} go on board the {ship}.
    Every year the {ship} puts to sea on {day}.
    day:
    - On which day does the mail for {city} leave?
    - When does the ship sail that takes the letters to {city}?
    - A letter is to reach {city}: by what day must it be on board?

    As a child {person} ran away to {town}.
    {town} is known all over the country for its {food}.
    food:
    - What is the town known for to which {person} ran away?
    - {person} ran away to a town with a famous dish: which one?
    - For which food is the town famous that sheltered the young {person}?

    {surname} the {profession} never parts from the parrot {pet}.
    One morning {pet} had been found {hidden}, half starved.
    hidden:
    - Where was the parrot of {surname} the {profession} found?
    - In what place did somebody come upon the parrot of {surname} the {profession}?
    - The parrot of {surname} the {profession} was a foundling: where did it sit?

    The bell of {estate} was cast by {company}.
    Bells from {company} are marked with {a animal}.
    animal:
    - Which animal is to be found on the bell of {estate}?
    - With what animal did the founders mark the bell of {estate}?
    - Somebody climbs up to the bell of {estate}: what animal does he see on it?

    The corner house in {street} is the property of {person}.
    {person} asks {many} crowns a month for a room.
    many:
    - How much is a room in the corner house in {street}?
    - For what sum are the rooms of the corner house in {street} let?
    - A student moves into the corner house in {street}: how many crowns must he pay every month?

    The monks of {estate} understand only {language}.
    A dictionary of {language} costs {many} crowns.
    many:
    - What is the price of a dictionary for talking to the monks of {estate}?
    - For how many crowns can one buy a dictionary of the language of {estate}?
    - A traveller wants to talk to the monks of {estate}: how much will the dictionary cost him?

    {town} is represented in parliament by {person}.
    The seat of {person} is next to that of {person2}.
    person2:
    - Beside whom does the member for {town} sit?
    - Who is the neighbour of {town}'s member in parliament?
    - Next to whose seat is that of the member for {town}?

    {person} has put everything into stocks of {company}.
    The stocks of {company} have fallen to {few} crowns.
    few:
    - What are the stocks of {person} worth now?
    - To how many crowns have the stocks fallen that {person} owns?
    - {person} wants to sell the stocks: what price will each of them bring?

    {inn} lies just before the gates of {town}.
    Everybody who enters {town} is made to pay {few} pence.
    few:
    - What must a guest of {inn} pay to enter the town?
    - How high is the toll of the town before which {inn} lies?
    - A guest of {inn} walks into the town: how many pence are taken from him at the gates?

    The steel for Project {project} is made by {company}.
    The furnaces of {company} went out on {date}.
    date:
    - On which day did the furnaces go out that made the steel for Project {project}?
    - Since when has no steel been made for Project {project}?
    - Project {project} has no more steel: when did the furnaces of its maker go cold?

    {person} emigrated on the {ship}.
    The {ship} landed all who were on board at {city}.
    city:
    - In which city did the emigrant {person} go ashore?
    - Where did the ship land on which {person} emigrated?
    - {person} left the old country by ship: at what city did the voyage end?

    The opera about {surname} the {profession} is by {person}.
    {person} went deaf in {year}.
    year:
    - When did the composer of the opera about {surname} the {profession} go deaf?
    - In which year was hearing lost by the composer of the opera about {surname} the {profession}?
    - Since what year could the opera about {surname} the {profession} not be heard by its own composer?

    The dead of {town} are buried in {town2}.
    In {town2} the graves are behind the {building}.
    building:
    - Behind which building are the graves of the dead of {town}?
    - Behind what building do they bury those who die in {town}?
    - A widow from {town} visits the grave of her husband: behind which building is it?

    {person} looks after the garden of {estate}.
    Last autumn {person} grew a pumpkin of {many} pounds.
    many:
    - How heavy was the pumpkin of the gardener of {estate}?
    - What weight was reached by the pumpkin that the gardener of {estate} grew?
    - The pumpkin of the gardener of {estate} is put on the scales: how many pounds do they show?

    The cargo of the {ship} was seized by Inspector {surname}.
    Inspector {surname} wears badge {code}.
    code:
    - Which badge does the inspector wear who seized the cargo of the {ship}?
    - What is the badge number of the officer by whom the cargo of the {ship} was seized?
    - The captain of the {ship} complains about the inspector: which badge should he name?

    {person} is defended by the lawyer {surname2}.
    The lawyer {surname2} can be rung up under {digits}.
    digits:
    - Under which number can the lawyer of {person} be called?
    - What is the telephone number of the lawyer who defends {person}?
    - {person} needs the lawyer at once: what number should one ring?

    At night the gates of {company} are guarded by {person}.
    {person} walks to work from {town}.
    town:
    - From which town does the night watch of {company} come?
    - Where does the guard of {company} walk from?
    - {company} is guarded at night by somebody from another town: which?

    The godchild of {surname} the {profession} is {person}.
    For the christening {person} was given {a object}.
    object:
    - What did the godchild of {surname} the {profession} get at the christening?
    - Which object was given to the godchild of {surname} the {profession}?
    - {surname} the {profession} held a child at its christening: what was the child given?
""")
