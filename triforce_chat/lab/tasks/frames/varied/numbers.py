"""Prices, weights, lengths, marks in files."""

from triforce_chat.lab.tasks.frames.frame import frames

NUMBERS = frames("""
    Whoever takes the ferry at {town} pays {few} pence, children and dogs included.
    few: the fare of the ferry at {town}
    - What is the fare of the ferry at {town}?
    - How much does it cost to be ferried across at {town}?
    - A traveller wants to cross by the ferry at {town}: how many pence must he have ready?
    - What price is charged for the crossing at {town}?

    {person} owes the {profession} {many} crowns and sleeps badly because of it.
    many: the debt of {person} to the {profession}
    - How large is the debt of {person} to the {profession}?
    - What sum must {person} still pay back to the {profession}?
    - The {profession} wants the money back from {person}: how many crowns is that?
    - By how many crowns is {person} in debt to the {profession}?

    The great bell of {town} weighs {big} pounds.
    big: the weight of the great bell of {town}
    - How heavy is the great bell of {town}?
    - How many pounds of metal hang in the belfry of {town}?
    - Of what weight is the great bell of {town}?
    - The bell of {town} is to be lifted: how many pounds must the rope bear?

    The tax office keeps the papers of {estate} in folder {code}.
    code: the folder with the tax papers of {estate}
    - In which folder do the tax papers of {estate} lie?
    - Which folder at the tax office belongs to {estate}?
    - A clerk needs the documents about the taxes of {estate}: which folder should he ask for?
    - Under what mark is {estate} filed with the tax office?

    Of the whole garrison of {town} only {many} men came home.
    many: the men of the garrison of {town} who came home
    - How many soldiers of the garrison of {town} survived?
    - The garrison of {town} marched off to war: how many of them returned?
    - To what number had the garrison of {town} shrunk by the end of the war?
    - What was left of the garrison of {town}?

    It takes {few} days on a mule to get from {town} up to {estate}.
    few: the journey on a mule from {town} to {estate}
    - How many days does a mule need from {town} to {estate}?
    - How long is the ride from {town} to {estate}?
    - Somebody sets out from {town} on a mule: after how many days is he at {estate}?
    - What time must one allow for the way from {town} to {estate}?

    The mare {pet} fetched {big} crowns at the auction.
    big: the auction of the mare {pet}
    - For how much was {pet} sold at the auction?
    - What did the highest bidder give for the mare {pet}?
    - Whoever took {pet} home from the auction had to pay for her. How much?
    - Which price did the mare {pet} bring?

    The engines of the {ship} devour {few} tons of coal a day.
    few: the coal that the {ship} burns in a day
    - How much coal does the {ship} need daily?
    - What is the daily consumption of the {ship} in tons of coal?
    - How many tons of coal are burnt every day on the {ship}?
    - The {ship} is to steam for one day: how much coal must be loaded?

    Whoever dials {digits} gets the fire watch of {city}.
    digits: the fire watch of {city}
    - There is a fire in {city}: which number does one call?
    - What is the telephone number of the fire watch of {city}?
    - By which number is the fire watch of {city} reached?
    - How does one get through to the fire watch of {city}?

    The jury found {person} guilty, and the fine came to {many} shillings.
    many: the fine of {person}
    - How high was the fine that {person} had to pay?
    - What did the verdict cost {person}?
    - How much money did the court want from {person}?
    - To a fine of how many shillings was {person} sentenced?

    Last year {big} clocks left the workshops of {company}.
    big: the clocks made by {company} last year
    - How many clocks did {company} make last year?
    - How many clocks were produced by {company} in the course of last year?
    - What was the yearly output of {company}?
    - Of how many new clocks could {company} boast last year?

    The nurse took the flowers for {person} to bed {few}.
    few: the hospital bed of {person}
    - In which bed did {person} lie?
    - What number had the sickbed of {person}?
    - Which hospital bed was occupied by {person}?
    - A visitor wants to see {person} in hospital: to which bed should he go?

    The greenhouse at {estate} is kept at {few} degrees, day and night.
    few: the temperature in the greenhouse at {estate}
    - How warm is the greenhouse at {estate}?
    - What temperature is maintained under the glass at {estate}?
    - To how many degrees must the gardener heat the greenhouse at {estate}?
    - The orchids in the greenhouse of {estate} want it warm: how many degrees do they get?

    A passport with the number {code} was issued to {person}.
    code: the passport of {person}
    - What is the number of {person}'s passport?
    - Which passport was {person} given?
    - At the frontier {person} is asked for the number of the passport: what is it?
    - With which passport does {person} travel?

    To this day {surname} the {profession} has been to the top of the mountain {many} times.
    many: the climbs of {surname} the {profession}
    - How often has {surname} the {profession} climbed the mountain?
    - What is the number of ascents made by {surname} the {profession}?
    - How many times has the mountain been climbed by {surname} the {profession}?

    At {town} {river} is {many} paces wide, and there it is at its narrowest.
    many: the width of {river} at {town}
    - How broad is {river} at {town}?
    - How many paces lie between the banks of {river} at {town}?
    - A rope is to be stretched across {river} at {town}: over how many paces must it reach?
    - What is the distance from bank to bank of {river} at {town}?

    So far {few} volunteers have put their names down for Project {project}.
    few: the volunteers for Project {project}
    - How many people have volunteered for Project {project}?
    - By how many volunteers is Project {project} supported?
    - On how many helpers can Project {project} count?
    - What is the number of names on the list for Project {project}?

    The policy that {person} took out with {company} bears the number {code}.
    code: the policy of {person} with {company}
    - Under what number is {person} insured with {company}?
    - What is the number of the insurance that {person} has with {company}?
    - {company} asks {person} for the number of the policy: what is the right answer?
    - Which policy did {company} issue to {person}?

    There is room for {few} sleepers at {inn}, if they do not mind the stable.
    few: the room for sleepers at {inn}
    - How many guests can spend the night at {inn}?
    - For how many guests is there a bed at {inn}?
    - How large a party could be lodged at {inn}?
    - A party of travellers wants to stay at {inn}: how many of them can it hold?

    Any vessel that enters the port of {city} has to fire {few} shots.
    few: the shots fired at the port of {city}
    - With how many shots must the port of {city} be greeted?
    - A captain sails into the port of {city}: how many shots does he owe it?
    - How many shots are demanded of ships that come to {city}?
    - What salute does the port of {city} expect?
""")
