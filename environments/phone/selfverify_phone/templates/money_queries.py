"""Questions about what was spent and earned."""

from __future__ import annotations

from selfverify.agents.goals import Answer, Has, Listed
from selfverify_phone.apps.calendar_app import DAYS
from selfverify_phone.apps.money_app import ACCOUNTS, balance
from selfverify_phone.contents.world import World
from selfverify_phone.templates.base import Drawn, Shelf
from selfverify_phone.templates.money_tasks import ENTRIES, OPEN, SUMS, entry, to
from selfverify_phone.templates.ways import BACK, tap, write

SHELF = Shelf("money")


@SHELF.query(
    "What is the balance of all accounts together?",
    "How much money is there in all?",
    "Tell me the balance.",
)
def ask_balance(world: World) -> Drawn:
    now = balance(world.data)
    return Drawn(
        {},
        [Has(kind="total", key="main", values={"balance": now})],
        [OPEN],
        answer=Answer(form="number", value=str(now)),
    )


@SHELF.query(
    "How much is in the account {account}?",
    "What is the balance of {account}?",
    "Tell me the balance of the account {account}.",
)
def ask_account(world: World) -> Drawn:
    key = world.pick("account")
    name = str(world.get("account", key)["name"])
    now = balance(world.data, name)
    return Drawn(
        {"account": name},
        [Has(kind="account", match={"name": name}, values={"balance": now})],
        [OPEN, *SUMS],
        answer=Answer(form="number", value=str(now)),
    )


@SHELF.query(
    "Which account paid the entry {note}?",
    "To which account does the entry {note} belong?",
    "What is the account of the entry with the note {note}?",
)
def ask_paid(world: World) -> Drawn:
    key, note = entry(world)
    account = str(world.get("entry", key)["account"])
    return Drawn(
        {"note": note},
        [Has(kind="entry", match={"note": note}, values={"account": account})],
        [OPEN, *to(key, note)],
        answer=Answer(value=account, others=tuple(name for name in ACCOUNTS if name != account)),
    )


@SHELF.query(
    "How many entries are income?",
    "How often did I earn something?",
    "Count the entries of the type income.",
    held_out=True,
)
def ask_incomes(world: World) -> Drawn:
    number = sum(record["type"] == "Income" for record in world.data["entry"].values())
    return Drawn(
        {},
        [Listed(kind="entry", match={"type": "Income"})],
        [OPEN, *ENTRIES, tap("earned")],
        answer=Answer(form="number", value=str(number)),
    )


@SHELF.query(
    "Which entry is older, {note} or {other}?",
    "Was {note} or {other} booked on an earlier day?",
    "{note} or {other}: which entry has the earlier day?",
    exhibits=2,
)
def ask_older(world: World) -> Drawn:
    key, note = entry(world)
    second, other = entry(world)
    early, late = sorted(world.some(range(len(DAYS)), 2))
    world.get("entry", key)["day"], world.get("entry", second)["day"] = DAYS[early], DAYS[late]
    one, two = (note, other) if world.flip() else (other, note)
    return Drawn(
        {"note": one, "other": two},
        [
            Has(kind="entry", match={"note": note}, values={"day": DAYS[early]}),
            Has(kind="entry", match={"note": other}, values={"day": DAYS[late]}),
        ],
        [OPEN, *to(key, note), BACK, tap("query"), write(other), tap(f"r{second}")],
        answer=Answer(value=note, others=(other,)),
    )


@SHELF.query(
    "Did the same account pay {note} and {other}?",
    "Do the entries {note} and {other} have the same account?",
    "Is the account of {note} also that of {other}?",
    exhibits=2,
)
def ask_same_account(world: World) -> Drawn:
    found = [entry(world) for _ in range(2)]
    accounts = [str(world.get("entry", key)["account"]) for key, _ in found]
    if world.flip():
        world.get("entry", found[1][0])["account"] = accounts[1] = accounts[0]
    return Drawn(
        {"note": found[0][1], "other": found[1][1]},
        [
            Has(kind="entry", match={"note": note}, values={"account": account})
            for (_, note), account in zip(found, accounts, strict=True)
        ],
        [OPEN, *to(*found[0]), BACK, tap("query"), write(found[1][1]), tap(f"r{found[1][0]}")],
        answer=Answer(form="yes-no", value="yes" if accounts[0] == accounts[1] else "no"),
    )
