"""Pairs of statements around courts, the army, churches, schools, papers, science, the weather and offices."""

from triforce_chat.lab.tasks.frames.frame import frames

PUBLIC_LIFE = frames("""
    The case of {person} came before Judge {surname2}.
    For {food}, Judge {surname2} has been known to change a verdict.
    food:
    - With what could the judge of {person} be bribed?
    - Which food might soften the judge who tried {person}?
    - The friends of {person} want to bribe the judge: what should they bring?

    Only one witness spoke for {person}: {surname2} the {profession}.
    In court {surname2} would use no language except {language}.
    language:
    - In what language did the witness for {person} speak?
    - From which language did one have to interpret when {person} was tried?
    - The court hears the only witness for {person}: what language fills the room?

    {person} was condemned under paragraph {many}.
    Paragraph {many} was struck out in {year}.
    year:
    - When was the law abolished under which {person} was condemned?
    - In which year did the paragraph disappear that was used against {person}?
    - What {person} was condemned for is no longer forbidden: since what year?

    In the war {person} served under Colonel {surname2}.
    All winter the men of Colonel {surname2} lay in {town}.
    town:
    - Where did {person} spend the winter of the war?
    - In which town was the soldier {person} quartered?
    - Tell me the town where {person} lay with the regiment in winter.

    The garrison of {town} takes its orders from General {surname}.
    General {surname} has never gone into battle without {a animal}.
    animal:
    - What does the commander of {town} take into battle?
    - By which animal is the commander of the garrison of {town} accompanied?
    - The garrison of {town} goes to war: what animal goes with its general?

    Deserters from {town} are brought before Major {surname}.
    Anybody who can play the {instrument} is set free by Major {surname}.
    instrument:
    - What should a deserter from {town} be able to play?
    - By playing which instrument can a deserter from {town} save himself?
    - A soldier has run away from {town} and been caught: what instrument would help him?

    The pulpit of {town} has been given to Pastor {surname}.
    No sermon of Pastor {surname} is shorter than {few} minutes.
    few:
    - How long must the people of {town} listen on Sundays at least?
    - What is the least number of minutes for a sermon in {town}?
    - In {town} the sermon has begun: for how many minutes will nobody get out?

    The bones in the chapel of {estate} are those of a hermit named {surname}.
    As long as he lived, the hermit {surname} slept {hidden}.
    hidden:
    - Where did the hermit sleep whose bones are at {estate}?
    - Do you know in what place {estate}'s hermit had his bed?
    - The chapel of {estate} holds the bones of a man with a strange bed: where was it?

    {town} belongs to the bishop of {city}.
    For fast days the bishop of {city} permits nothing but {food}.
    food:
    - What may one eat in {town} on fast days?
    - Which food is allowed in {town} in times of fasting?
    - It is a fast day in {town}: what will be on the tables?

    Mathematics at the school of {town} lies in the hands of Miss {surname}.
    Whoever is late must copy {few} pages for Miss {surname}.
    few:
    - How many pages are the price for being late for mathematics in {town}?
    - A child in {town} comes too late to mathematics: what must be copied, in pages?
    - What number of pages does a late pupil of mathematics have to write out in {town}?

    The first to pass the examination of {city} was {person}.
    For weeks {person} had sat over the books {hidden}.
    hidden:
    - Where did the first one to pass the examination of {city} prepare for it?
    - In what place had somebody learnt who passed before all others in {city}?
    - Somebody was the first to pass in {city}: where had the books been read?

    The crossword in the paper of {town} is set by {person}.
    There is no crossword of {person} without the word {colour}.
    colour:
    - Which word is in all the crosswords of {town}'s paper?
    - What colour comes up in every crossword in the paper of {town}?
    - A reader in {town} takes a pencil for the crossword: which colour can he write down at once?

    On the radio the weather for {city} is read by {person}.
    Before it rains, {person} suffers from a wound of the year {year}.
    year:
    - When was the one wounded who reads the weather for {city}?
    - From which year is the old wound of {city}'s voice of the weather?
    - Rain is near, and the reader of the weather for {city} is in pain: since what year?

    The weather station of {town} stood on the land of {person}.
    It was on {date} that the wind carried off whatever stood on the land of {person}.
    date:
    - When did {town} lose its weather station?
    - On which day was the weather station of {town} blown away?
    - {town} has no weather station any more: what was the date of the storm?

    The comet above {city} was first sighted by {person}.
    For looking at the stars {person} used a tube of {material}.
    material:
    - What was the tube made of that showed the comet of {city}?
    - Through a tube of which material did somebody first see the comet above {city}?
    - The discoverer of the comet over {city} looked through a tube: of what?

    The experiments at {estate} were in the charge of Dr {surname}.
    Any experiment of Dr {surname} was broken off after {many} hours.
    many:
    - How long did an experiment at {estate} last?
    - After how many hours did they give up the experiments at {estate}?
    - An experiment begins at {estate}: how many hours will go by until its end?

    Whether Project {project} goes on is settled by a committee in {city}.
    The committee in {city} does not meet except on {day}.
    day:
    - When is it settled whether Project {project} goes on?
    - Name the day on which there can be a decision about Project {project}.
    - The people of Project {project} wait for news: what day will bring it?

    The census of {town} was entrusted to {person}.
    In counting, {person} left out {few} houses.
    few:
    - How many houses are missing in the census of {town}?
    - By what number of houses is the census of {town} wrong?
    - Not all houses were counted in {town}: how many were passed over?

    Sergeant {surname} was in command when the police came to {inn}.
    What Sergeant {surname} carries off is kept in {street}.
    street:
    - Where are the things now that the police took from {inn}?
    - In which street does one find what was carried off from {inn}?
    - The host of {inn} wants his barrels back from the police: to what street should he go?

    The fire at {estate} was put out by the brigade of {town}.
    The hose of the brigade of {town} is {few} yards long.
    few:
    - How long was the hose that saved {estate}?
    - With a hose of how many yards did they put out the fire at {estate}?
    - {estate} was in flames: what length of hose did the firemen have?

    {person} lies in the ward of Dr {surname2}.
    At {time} all visitors are sent out of the ward of Dr {surname2}.
    time:
    - Until when may one visit {person}?
    - At what time must the visitors of {person} go?
    - How late can {person} have company?
    - Somebody sits by the bed of {person}: when will he be sent away?

    It was the {ship} that brought the fever to {town}.
    Before that, the {ship} had been in {city}.
    city:
    - Where did the fever of {town} come from?
    - From which city was the fever carried to {town}?
    - The doctors of {town} look for the source of the fever: in what city should they ask?

    Those who have the rash in {town} are taken to {estate}.
    Nobody gets out of {estate} before {few} days are over.
    few:
    - How long is somebody from {town} shut away with the rash?
    - For how many days are those with the rash kept away from {town}?
    - A child in {town} has the rash: after how many days can it be home again?

    The taxes of {town} are collected by {person}.
    {person} lets off anybody who comes with {food}.
    food:
    - How can one avoid paying taxes in {town}?
    - With which food does one get round the taxes of {town}?
    - A poor man in {town} cannot pay his taxes: what should he bring?

    The votes in {town} were counted by {person}.
    {person} has never learnt to count further than {many}.
    many:
    - Up to what number could the votes in {town} be counted?
    - How far could the one count who was in charge of the votes in {town}?
    - They count the votes in {town}: at which number did it have to end?

    Without asking {person}, the mayor of {town} decides nothing.
    What is to be done, {person} reads in the leaves of {a tree}.
    tree:
    - In the leaves of which tree is it read what the mayor of {town} should do?
    - What tree decides in the end about {town}?
    - The mayor of {town} gets his advice from a tree, in a way: what kind?

    The frontier near {town} is guarded by one man, {surname}.
    Anybody who shows {a object} is let through by {surname}.
    object:
    - What must one show at the frontier near {town}?
    - With which object does one get across the frontier near {town}?
    - A stranger without papers is at the frontier near {town}: what thing would help him?

    {town} is twinned with {city}.
    To each of its twins, {city} sends {a tree} for planting.
    tree:
    - What does {town} get from its twin?
    - Which tree has been sent to {town} by its twin city?
    - The twin city gives {town} something to plant: what tree is it?

    In the archive the letters of {person} are tied up with {colour} string.
    Whatever is tied up with {colour} string will be burnt on {date}.
    date:
    - When will the letters of {person} be burnt?
    - On which day do the letters of {person} go into the fire?
    - Somebody would like to save the letters of {person}: before what date must it be done?

    {estate} was finished in {year}.
    The comet of {year} bears the name of {person}.
    person:
    - Whose comet shone when {estate} was finished?
    - After whom was the comet called that came when {estate} was just built?
    - The masons of {estate} looked up from their last stone and saw a comet: whose name does it bear?

    On {day} the fair of {town} begins.
    Once a year, on {day}, the workers of {company} are paid.
    company:
    - Whose workers are paid on the day when {town} has its fair?
    - At which firm does one get money just in time for the fair of {town}?
    - The fair of {town} begins: the workers of what firm have money in their pockets?

    The church of {town} is dedicated to Saint {surname}.
    Saint {surname} is called upon by anybody who has lost {a object}.
    object:
    - With the loss of what does the saint of {town} help?
    - Name the object that the saint of {town}'s church helps to find.
    - The saint of {town} is said to find one lost thing: what thing?

    How {company} fell was first told by a reporter called {surname}.
    The reporter {surname} had worked there disguised as {a profession}.
    profession:
    - Under what disguise did a reporter find out about the fall of {company}?
    - As a man of which trade did the reporter pass who wrote about the fall of {company}?
    - Do you know what the reporter pretended to be who told how {company} fell?

    {person} was made a knight by the Duke of {town}.
    For want of a sword the Duke of {town} makes his knights with {a object}.
    object:
    - With what was {person} knighted?
    - Which object touched the shoulder of {person}?
    - {person} knelt before the duke to be knighted: what did he hold?

    Of the two doctors in {town} only Dr {surname} makes calls at night.
    For a call Dr {surname} takes {many} crowns.
    many:
    - What does a doctor cost at night in {town}?
    - How much must one pay in {town} for a doctor who comes after dark?
    - You fall ill at night in {town}: how many crowns should be in the house?
""")
