"""Marks and codes: on displays, in registers, on locks, and the numbers that one dials."""

from triforce_chat.lab.tasks.frames.frame import frames

CODES = frames("""
    When the boiler of {estate} is too hot, its panel reads {code}.
    code: the boiler of {estate} when it is too hot
    - The boiler of {estate} overheats: what does its panel show?
    - Which sign appears if the boiler of {estate} becomes too hot?
    - By what mark does the boiler of {estate} give warning of too much heat?
    - How does the stoker of {estate} see that the boiler has grown too hot?

    {code} flashes above the door of the lift at {company} as soon as too many people get in.
    code: the overloaded lift at {company}
    - The lift at {company} is overloaded: what lights up above its door?
    - What does the lift at {company} display when it is overfull?
    - Which signal tells the staff of {company} that the lift carries more than it can bear?
    - If more people crowd into the lift at {company} than it can lift, what can they read there?

    A paper jam in the printing press of {company} is announced by the signal {code}.
    code: the signal for a paper jam at {company}
    - Paper is stuck in the press of {company}: what signal comes?
    - Which signal stands for a jam at the press of {company}?
    - How does the press of {company} report that its paper is stuck?
    - What must the printers of {company} see before they go and pull out crumpled sheets?

    "If you see {code} on the instrument board of the {ship}, a hatch is open," said the mate.
    code: the warning of an open hatch on the {ship}
    - How does the instrument board of the {ship} warn of an open hatch?
    - Somebody forgot to shut a hatch of the {ship}: what does the board show?
    - What can be read on the {ship} while one of her hatches is not closed?
    - Which message on the board of the {ship} sends the sailors to look at the hatches?

    No lamp burns on the control desk of Project {project} except {code}, and that one means low pressure.
    code: the lamp for low pressure at Project {project}
    - Which lamp of Project {project} tells that the pressure has dropped?
    - The pressure falls at Project {project}: what lamp goes on?
    - By which lamp is a lack of pressure shown to the engineers of Project {project}?
    - Name the lamp that means trouble with the pressure at Project {project}.

    The alarm at {estate} falls silent only after {digits} has been typed in.
    digits: the way to silence the alarm at {estate}
    - How does one switch off the alarm at {estate}?
    - Which figures stop the alarm at {estate}?
    - The alarm at {estate} is howling for no reason: what must be typed?
    - What has to be entered at {estate} so that the siren stops?

    To wake the computer of {surname} the {profession} one needs the figures {digits}.
    digits: the computer of {surname} the {profession}
    - What unlocks the computer of {surname} the {profession}?
    - With which figures does {surname} the {profession} log in?
    - Somebody wants to use the computer that {surname} the {profession} has locked: what must he type?
    - Which figures protect the computer of {surname} the {profession}?

    {person} plays the figures {digits} in the lottery every week and has never won a penny.
    digits: the lottery ticket of {person}
    - On which figures does {person} bet in the lottery?
    - What does {person} put down on every lottery ticket?
    - Which figures would have to be drawn for {person} to win?
    - The lottery has been drawn, and {person} is rich: what figures came up?

    Call {digits} if the snow has blocked the pass above {town}.
    digits: the number to call about snow on the pass above {town}
    - The pass above {town} is closed by snow: what number should be rung?
    - Under which number does one find help if snow lies on the pass above {town}?
    - What is the telephone number for those who are stuck at the pass above {town}?
    - If snow keeps somebody from crossing above {town}, what should he dial?

    Tables at {inn} are booked by ringing {digits} before noon.
    digits: the booking of a table at {inn}
    - Which number does one dial to have a table kept at {inn}?
    - A family would like to dine at {inn}: what number should it call?
    - By what telephone number are seats reserved at {inn}?
    - How can one reach {inn} by telephone?

    The veterinarian who looks after the horses of {estate} answers under {digits} at any hour.
    digits: the telephone of the veterinarian of {estate}
    - A horse of {estate} falls sick at night: which number should the groom ring?
    - What is the number of the animal doctor whom {estate} employs?
    - Under what number does one get help for the sick horses of {estate}?
    - Tell me under what number the horses of {estate} can get a doctor.

    In the land register {estate} is entered as plot {code}.
    code: {estate} in the land register
    - As what plot is {estate} known to the surveyors?
    - Under which mark does one find {estate} in the land register?
    - What is the plot of {estate}?
    - A buyer asks the register for {estate}: which plot is he shown?

    Every crate that {company} sends overseas has {code} stencilled on its side.
    code: the mark on the crates of {company}
    - What is painted on the boxes that {company} ships abroad?
    - By which mark does one recognize the crates of {company}?
    - A docker finds a crate of {company}: what does he read on it?
    - Name the mark that {company} puts on its crates.

    Before the operation a nurse tied a tag with {code} around the wrist of {person}.
    code: the tag on the wrist of {person}
    - What was written on the tag that {person} wore in hospital?
    - Which mark did the patient {person} carry on one arm?
    - Under what sign was {person} known to the surgeons?
    - What did the nurse fasten to {person} so that nobody would be mistaken for somebody else?

    {person} started in the marathon with {many} pinned to the back.
    many: the starting number of {person}
    - Which starting number did {person} have?
    - Under what number did {person} run the marathon?
    - By which number could one tell {person} among the runners?
    - What figures were on the back of the runner {person}?

    The seed that {company} brought out this spring goes by the catalogue number {code}.
    code: the new seed of {company}
    - What number does the catalogue give to the new seed of {company}?
    - A gardener wants to order the new seed of {company}: under which number?
    - Which number has {company} assigned to the seed of this spring?
    - If one wants to buy what {company} has newly bred, which catalogue number should be named?

    The observatory of {city} listed the new star as {code}.
    code: the star that was found at {city}
    - What do astronomers call the star that was found at {city}?
    - Under which designation is the star of {city} known?
    - How was the star registered that had been discovered at the observatory of {city}?
    - A star was found at {city}: what stands for it in the lists?

    All claims for the hail of {town} are filed under {code} at the insurance office.
    code: the claims for the hail of {town}
    - A farmer asks for money because of the hail at {town}: which mark should he give?
    - Where in the files does the insurance office keep the hail of {town}?
    - What is the reference for damage by hail at {town}?
    - Do you know under which mark losses from the hail at {town} are recorded?

    In the lost luggage office the suitcase of {person} got the label {code}.
    code: the lost suitcase of {person}
    - What stands on the label of the suitcase that {person} lost?
    - Which label was stuck on the luggage of {person}?
    - By what label can {person} claim the lost suitcase?
    - {person} asks for a suitcase that went astray: what label should the clerk look for?

    The bug that stopped the tills of {company} is number {digits} on the list of the programmers.
    digits: the bug in the tills of {company}
    - Under which number did the programmers record the failure of the tills of {company}?
    - What number does the fault have that brought the tills of {company} to a halt?
    - The tills of {company} stood still because of an error in a program: which one on the list?
    - Tell me which entry in the list of faults explains why the tills of {company} went dead.

    For trout one sets the smoke oven of {inn} to step {few}.
    few: the step of the smoke oven of {inn} for trout
    - The cook at {inn} wants to smoke trout: to what step must the oven be set?
    - At which step are trout smoked in the oven of {inn}?
    - What setting do trout need in the smoke oven of {inn}?
    - I would like to know how the oven of {inn} has to be set for trout.

    The pilots were told to tune to channel {many} once they saw the lights of {city}.
    many: the channel of the pilots near {city}
    - On which channel do pilots speak with {city}?
    - A pilot comes in sight of {city}: which channel must he choose?
    - What channel is used by aircraft that approach {city}?
    - Name the channel on which an aeroplane should call {city}.

    Whoever writes to the prisoners of {town} must put {code} on the envelope.
    code: the mark on letters to the prisoners of {town}
    - How must letters to prison be marked in {town}?
    - What has to stand on an envelope that is meant for an inmate at {town}?
    - A mother sends a letter to her son in the prison of {town}: what must she write on the outside?
    - Without which mark does no letter reach the prisoners of {town}?

    Locker {many} at the swimming baths is always taken by {surname} the {profession}.
    many: the locker of {surname} the {profession}
    - In which locker does {surname} the {profession} leave the clothes?
    - What is the number of the locker that {surname} the {profession} uses?
    - The clothes of {surname} the {profession} hang at the baths: in what locker?
    - If {surname} the {profession} goes for a swim, which locker is used?
""")
