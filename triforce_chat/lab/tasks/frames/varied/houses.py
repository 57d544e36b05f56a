"""Streets, buildings, estates and inns as answers."""

from triforce_chat.lab.tasks.frames.frame import frames

HOUSES = frames("""
    The tram that goes to {street} is the only one in {city} without a conductor.
    street: the tram without a conductor in {city}
    - To which street does the tram of {city} go that has no conductor?
    - Where does one get in {city} by the tram without a conductor?
    - What is the destination of the tram of {city} in which nobody sells tickets?
    - I would like to ride in {city} without meeting a conductor: to which street does that take me?

    {person} fell off a bicycle in {street} and lost two teeth.
    street: the fall of {person}
    - Where did {person} have the accident with the bicycle?
    - In which street did {person} lose two teeth?
    - What street does {person} remember because of a fall?
    - Two teeth of {person} were left in the gutter: of which street?

    When the king visits {town}, no cart may stand in {street}.
    street: the street of {town} that is cleared for the king
    - Which street of {town} is kept free for the king?
    - The king is on his way to {town}: from where must all carts be removed?
    - Where in {town} is it forbidden to leave a cart during a royal visit?
    - Tell me in which street of {town} the king will meet no cart.

    Shares of {company} are traded at a coffee house in {street}.
    street: the coffee house that deals in shares of {company}
    - Where does one buy shares of {company}?
    - In which street do dealers in the shares of {company} meet?
    - Somebody wants to get rid of his shares of {company}: to what street should he go?
    - Do you know in what street one can have a coffee and buy shares of {company}?

    The house with the blue tiles in {street} has belonged to the consul of {city} for a century.
    street: the house of the consul of {city}
    - In which street does the consul of {city} have a house?
    - Where would one call on the consul of {city}?
    - Blue tiles mark the house of the consul of {city}: what street is it in?
    - If somebody needs the consul of {city}, in which street should he ring the bell?

    No gas has been laid yet in {street}, though all the rest of {town} has it.
    street: the street of {town} without gas
    - Which street of {town} still has no gas?
    - Where in {town} must people do without gas?
    - In {town} nearly every kitchen has gas: what street is the exception?
    - Name the street in which the people of {town} wait for gas.

    The procession of {town} halts three times: at the bridge, in {street}, and before the {building}.
    street: the second halt of the procession of {town}
    - In which street does the procession of {town} stop?
    - What street do people choose who want to see the procession of {town} stand still?
    - After the bridge, where is the next halt of the procession of {town}?
    - Tell me in what street of {town} the procession makes its second halt.

    {person} teaches the {instrument} in the back room of the {building}.
    building: the lessons that {person} gives on the {instrument}
    - In which building does {person} give lessons on the {instrument}?
    - Where can one learn the {instrument} from {person}?
    - Pupils of the {instrument} have a lesson with {person}: through what door do they go?
    - Under which roof do the pupils of {person} practise the {instrument}?

    During the siege the people of {town} baked their bread in the {building}.
    building: the bread of {town} during the siege
    - Where was bread made in {town} while it was besieged?
    - Which building served {town} as a bakery during the siege?
    - The enemy stood before {town}: in what building were the ovens?
    - In which building did the besieged of {town} have their oven?

    Of all that stood on the market place of {town}, the bombs spared only the {building}.
    building: what the bombs spared in {town}
    - Which building on the market place of {town} was not hit?
    - What was left of the market place of {town}?
    - The bombers have flown away from {town}: what still stands on the market place?
    - What alone on the market place of {town} survived the bombs?

    "Meet me in the {building} at dusk," said the letter that {person} burnt.
    building: the meeting in the letter to {person}
    - Where was {person} asked to come at dusk?
    - In what building did somebody want to see {person}?
    - Which building was named in the letter that {person} threw into the fire?
    - Do you know where somebody wanted to wait for {person} in the evening?

    If a shop in {street} wants to stay open at night, its owner has to ask for leave in the {building}.
    building: the leave to keep a shop in {street} open at night
    - Where does a shopkeeper in {street} apply for longer hours?
    - In which building is it decided whether shops in {street} may be open at night?
    - The owner of a shop in {street} would like to sell at night: to what building must he go?
    - Tell me where one gets leave to sell at night in {street}.

    The desk at which {person} wrote all those poems now stands at {estate}.
    estate: the desk of {person}
    - Where is the desk of {person}?
    - At which house can one sit down where {person} wrote poems?
    - Whoever wants to see on what {person} wrote, which estate should he visit?
    - Which estate has got hold of the poet {person}'s desk?

    {pet} was foaled in a barn but grew up on the meadows of {estate}.
    estate: the meadows on which {pet} grew up
    - Where did the horse {pet} graze when young?
    - On the grass of which estate did {pet} become a horse?
    - Which estate fed {pet} as a foal?
    - By which estate was {pet} reared?

    The peace between {company} and its workers was made over dinner at {estate}.
    estate: the peace between {company} and its workers
    - Where did {company} and its workers come to terms?
    - Which house saw the end of the quarrel between {company} and its workers?
    - {company} and its workers have settled their differences: at what place?
    - At what estate did {company} sit down with its workers?

    Ghosts are said to walk in three houses near {town}, but only at {estate} did anybody see one.
    estate: the ghost near {town}
    - Where near {town} has a ghost been seen?
    - Which house near {town} is really haunted?
    - Someone wants to meet a ghost near {town}: at what house has he the best chance?
    - At which place did a ghost appear to somebody near {town}?

    {person} was snowed in at {inn} for nine days.
    inn: the inn at which {person} was snowed in
    - Where was {person} held up by the snow?
    - Which inn could {person} not leave for nine days?
    - Snow blocked the road, and {person} had to stay: at what inn?
    - Under the roof of which inn did {person} sit out the snow?

    The fight between the crew of the {ship} and the dockers broke out at {inn}.
    inn: the fight of the crew of the {ship}
    - Where did the sailors of the {ship} come to blows with the dockers?
    - In which inn did the crew of the {ship} fight?
    - The police pulled the men of the {ship} and the dockers apart: in what house?
    - What inn did the crew of the {ship} turn into a battlefield?

    The society that searches for the tomb of {surname} holds its dinners at {inn}.
    inn: the dinners of the society for the tomb of {surname}
    - Where do those dine who look for the tomb of {surname}?
    - At which inn does the society meet that would like to find where {surname} lies buried?
    - Somebody wants to join the search for the tomb of {surname}: at what inn should he ask?
    - Name the inn at which those eat who hope to find the grave of {surname}.

    A coach to {estate} can be hired at {inn} and nowhere else.
    inn: the hire of a coach to {estate}
    - Where does one hire a coach to {estate}?
    - Which inn lets out coaches for the drive to {estate}?
    - A lady has to get to {estate} and has no carriage: at what inn will she find one?
    - From which inn do the hired coaches to {estate} set out?
""")
