"""The texts of the corpus of Office files; the company and its people are invented."""

from __future__ import annotations

RULES = """
# Rules for crews of Kestrel Ferries

These rules apply to all crews from 1 March. They replace the rules of the year before.

## Watches

A watch at sea lasts six hours. Between two watches everyone has at least ten hours of rest. The master may shorten the
rest to eight hours in fog or ice, and enters the reason in the log.

## Uniform

Deck crews wear the blue jacket with reflecting bands. Jackets are washed by the company every second Friday. Whoever
loses a jacket pays 35 crowns.

## Safety on the car deck

Engines are switched off as soon as a vehicle is parked. Passengers leave the car deck before departure.

- Gas bottles are closed and reported to the mate.
- Electric cars are parked in lanes 1 and 2, next to the water mist system.
- Dogs may stay in the car only on crossings below forty minutes.

## Sick leave

Crew members who fall ill call the duty officer at least two hours before their watch. A doctor's note is needed from
the third day on.

## Drones

Passengers may not fly drones from the ship. The mate keeps drones until arrival.

## Allowances

Allowances are paid with the wage of the following month.
"""

ALLOWANCES = (
    ("Allowance", "Amount in crowns", "Condition"),
    ("Night watch", "48", "per watch between 22:00 and 06:00"),
    ("Ice service", "110", "per day with the ice flag set"),
    ("Trainer", "75", "per day with a trainee on board"),
    ("Meal", "19", "per day without a galley"),
)

SLIDES = (
    ("Season 2024", ["Kestrel Ferries, meeting of the masters", "Presented by Orla Finch"], "Welcome everyone."),
    (
        "What changed in winter",
        ["The Petrel got a new bow thruster", "Pier 3 in Skerry is closed until May", "Tickets are sold by phone app"],
        "The bow thruster cost 212,000 crowns, of which the insurance paid half after the grounding in November.",
    ),
    (
        "Passengers",
        ["418,000 passengers in 2023, nine per cent more than in 2022", "The busiest day was 22 July"],
        "On the busiest day we carried 4,911 passengers. The Gannet made two extra crossings.",
    ),
    (
        "Goals for summer",
        ["Depart within three minutes of the timetable", "Answer complaints within five working days"],
        "If a ship is late by more than an hour, passengers get a voucher for a hot drink.",
    ),
    (
        "Shore power",
        ["Arden gets a shore connection of 1.2 megawatts in June", "Generators stay off in port after that"],
        "The grid company needs the cable route by 15 April. Tomas Reed is in charge of the permits.",
    ),
)

_ROUTES = (("Arden", "Skerry", 1.0), ("Arden", "Holm", 1.6), ("Skerry", "Holm", 0.8), ("Holm", "North Isle", 2.2))
_CLASSES = (
    ("Adult", 12),
    ("Child", 6),
    ("Bicycle", 4),
    ("Motorcycle", 18),
    ("Car", 41),
    ("Camper", 63),
    ("Lorry", 140),
)


def fares() -> list[tuple[str, ...]]:
    """Return the table of fares: each route, class and season."""
    rows: list[tuple[str, ...]] = [("From", "To", "Class", "Season", "Price in crowns", "Valid for days")]
    for start, end, distance in _ROUTES:
        for name, base in _CLASSES:
            for season, factor, days in (("summer", 1.25, "7"), ("winter", 1.0, "30")):
                rows.append((start, end, name, season, f"{base * distance * factor:.2f}", days))
    return rows


DEPARTURES = (
    ("Route", "First departure", "Last departure", "Minutes"),
    ("Arden to Skerry", "05:40", "23:10", "35"),
    ("Arden to Holm", "06:20", "21:45", "70"),
    ("Skerry to Holm", "07:00", "19:30", "25"),
    ("Holm to North Isle", "08:15", "17:00", "95"),
)

SHIPS = (
    ("Ship", "Built", "Length in metres", "Cars", "Passengers", "Call sign"),
    ("Petrel", "2009", "84", "95", "420", "KFPT"),
    ("Gannet", "2017", "96", "130", "600", "KFGN"),
    ("Fulmar", "1998", "61", "48", "250", "KFFM"),
    ("Tern", "2021", "38", "0", "180", "KFTN"),
)

_NAMES = """
Ines Calder, Bo Lindahl, Mara Quist, Jon Peel, Edda Storm, Lars Pike,
Nell Arkwright, Ovid Hale, Runa Beck, Sten Marsh, Tilda Roe, Ulf Garrick,
Vera Holt, Wim Drake, Ylva Stone, Abel Crane, Britt Moss, Carl Fenn,
Dora Leigh, Emil Ross, Frida Vance, Gus Thorne, Hedda Lunt, Ivar Sloan,
Juno Carr, Kaja Wick, Leo Brandt, Mina Shaw, Nils Urban, Olga Prior
"""
_ROLES = ("master", "mate", "engineer", "deckhand", "steward")
CREW = (
    ("Name", "Role", "Ship", "Certificate expires", "Cabin"),
    *(
        (name, _ROLES[n % 5], SHIPS[1 + n % 4][0], f"202{5 + n % 4}-{1 + n % 12:02}-{3 + n % 25:02}", str(101 + n))
        for n, name in enumerate(name.strip() for name in _NAMES.split(","))
    ),
)

MAILS = (
    (
        "Lost property",
        "Front desk <desk@kestrel.example>",
        "A black cello case was found on the Gannet on Saturday. It is kept in the store room in Arden until the end "
        "of April. Lost property is given to the police after eight weeks.",
    ),
    (
        "Fuel in February",
        "Tomas Reed <tomas@kestrel.example>",
        "The fuel figures of February are attached. The Fulmar used less because it was in dock for eleven days.",
    ),
    (
        "Re: Bakery in Skerry",
        "Orla Finch <orla@kestrel.example>",
        "We change the supplier of bread. Hearth and Rye deliver at 05:10 to pier 2 from Monday on.\n\nThe old "
        "contract with Millers ends on 31 March; the last invoice goes to accounts.",
    ),
    (
        "Door code",
        "Harbour office <harbour@kestrel.example>",
        "The crew entrance in Holm has a new lock. Ask the harbour office for a token; codes are not used any more. "
        "Spare tokens are in the grey cabinet behind the radio.",
    ),
    (
        "Fire drill",
        "Edda Storm <edda@kestrel.example>",
        "The drill on the Tern took seven minutes and forty seconds. The port raft did not inflate, and a new cylinder "
        "has been ordered from Norsk Raft.",
    ),
)

FUEL = (
    ("Ship", "Litres", "Hours at sea", "Litres per hour"),
    ("Petrel", "88400", "402", "220"),
    ("Gannet", "121300", "455", "267"),
    ("Fulmar", "31050", "199", "156"),
    ("Tern", "19870", "310", "64"),
)

COMPLAINT = """<html><head><style>p { color: navy }</style></head><body>
<p>Dear Kestrel Ferries,</p>
<p>on 17 February we travelled from Arden to Holm with the ten o&#8217;clock ferry. The heating in the rear saloon did
not work, and the staff could give us only four blankets.</p>
<p>My son&#8217;s wheelchair did not fit through the door of the lift on deck 5. I ask you to refund our tickets, 92
crowns, booking number KF-20871.</p>
<p>Yours, Ada Wren</p></body></html>"""

SCAN = (
    """
Report of inspection no. 614

Ship: Fulmar                Place: Skerry, dry dock
Inspector: Gideon Vale

1. Hull. The plates on the port side have lost at most
0.9 millimetres. Two anodes near the rudder are used up
and are to be replaced before the ship leaves the dock.

2. Propeller. One blade has a dent of four centimetres.
It may be ground, and does not need to be replaced.

3. Paint. The antifouling paint is of the type Seaguard 7
and is good for another eighteen months.
""",
    """
Report of inspection no. 614, page 2

4. Lifejackets. Of 262 lifejackets, nine have broken
lights. Lights are to be ordered within one week.

5. Ballast tanks. Tank 2 has a leaking valve; the ship may
sail with tank 2 empty until the end of the season.

6. Certificate. The certificate is extended until
30 November. The fee of 1,480 crowns is due in 14 days.

Signed in Skerry, Gideon Vale
""",
)
