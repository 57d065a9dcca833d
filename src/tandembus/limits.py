"""Every bound, and why it is there.

Here live numbers only. Ranges of entity settings are enforced in `settings.py`, frame and message
bounds in `amqp/` and `server/`, the rest in `core/` and `store/`. The rule: nothing in the broker
grows with what a peer sends unless a number here stops it.

Sizes are bytes and times are milliseconds unless the name says otherwise (KB and MB are 1,024 and
1,048,576 bytes, as in Service Bus).
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

# ---------------------------------------------------------------------------------- names

MAX_ENTITY_NAME: Final = 260
"""Characters of a queue's or topic's path (Service Bus)."""
MAX_SUBSCRIPTION_NAME: Final = 50
"""Characters of a subscription's name (Service Bus)."""
MAX_RULE_NAME: Final = 50
"""Characters of a rule's name (Service Bus)."""
MAX_NAMESPACE_NAME: Final = 50
"""Characters of a namespace's name (Service Bus). It becomes a folder name, so it is short."""
MAX_ADDRESS: Final = 1_024
"""Characters of a link address with scheme, host and suffixes, before it is taken apart. The
longest legal one is far below; a longer one is not worth a scan."""

# ------------------------------------------------------------------------------- messages

MAX_MESSAGE_ID: Final = 128
"""Characters of a MessageId (Service Bus). Also what a row of the duplicate history can cost."""
MAX_SESSION_ID: Final = 128
"""Characters of a SessionId or ReplyToSessionId (Service Bus)."""
MAX_PARTITION_KEY: Final = 128
"""Characters of a PartitionKey or ViaPartitionKey (Service Bus)."""
MAX_PROPERTY_VALUE: Final = 32 * KIB
"""One application property (Service Bus). Bounds what a filter or an index can be made to hold."""
MAX_PROPERTIES: Final = 64 * KIB
"""All properties of a message together (Service Bus), and all that receivers have changed of them:
a message whose properties to modify would exceed it is dead-lettered as HeaderSizeExceeded."""
MAX_PROPERTY_COUNT: Final = 256
"""Keys among the application properties: 64 KiB of one-letter keys would cost more CPU than any
honest message."""
MAX_PROPERTY_NAME: Final = 128
"""Characters of the application property that a priority queue looks at."""
MAX_DEAD_LETTER_TEXT: Final = 4_096
"""Characters of a dead-letter reason or description. Longer ones are cut: they are for people, and
must not push the properties over their bound."""
MAX_DELIVERY_COUNT: Final = 0x7FFF_FFFF
"""The largest MaxDeliveryCount (Service Bus, int32); also what the paired namespaces ask for."""
DEFAULT_MAX_DELIVERY_COUNT: Final = 10
"""Service Bus's default."""

DEFAULT_MESSAGE_KB: Final = 256
"""Message size of an entity that says nothing (Service Bus standard)."""
MAX_MESSAGE_KB: Final = 102_400
"""Largest message size that an entity can be set to: 100 MB (Service Bus premium)."""
PIECE_BYTES: Final = 512 * KIB
"""A message that goes on after so many bytes is stored in pieces as it comes, and read in pieces as
it leaves. In memory as a whole it is only where somebody asks for all of it: `Engine.body`, as the
console does for one message that is shown whole. Half of what closes a group."""
MAX_UNSTORED_BYTES: Final = 1 * MIB
"""Pieces of one connection that wait for the disk; then nothing more is read from it."""
MIN_PIECE_COST: Final = 64 * KIB
"""What a piece counts at least: a peer can make pieces of one byte, and each takes memory, and
time when it is dropped."""
MAX_PIECES: Final = 8_192
"""Pieces of one message: 12 KiB each for the largest one. More are read too slowly."""
MAX_UNFINISHED_BYTES: Final = 2_048 * MIB
"""Pieces on disk of messages that one connection has not finished: 20 of the largest. Who begins
more is told to try later."""
MAX_ALL_UNFINISHED_BYTES: Final = 8 * MAX_UNFINISHED_BYTES
"""The same of all connections of a namespace: no entity's size counts them yet."""
PIECES_IN_MEMORY: Final = 16
"""Pieces of large messages on their way out that a namespace keeps in memory."""
MAX_REPLY_BYTES: Final = 1_024 * MIB
"""Messages in one answer of `$management`: ten of the largest. AMQP's own bound is four times
that."""
MAX_REPLY_IN_MEMORY: Final = 64 * MIB
"""Of these, messages that are not stored in pieces, and so are in memory together."""
MAX_BATCH_BYTES: Final = 1 * MIB
"""A batch in one transfer (Service Bus premium)."""
BATCH_ENVELOPE: Final = 4 * KIB
"""What a batch may be larger than a message: its envelope repeats properties of the first one."""
MAX_REQUEST_MESSAGES: Final = 4_500
"""Messages, or numbers of messages, in one request to `$management`. A batch has no such bound: its
size is one."""
MAX_REQUEST_NODES: Final = 60_000
"""Values in the messages of one request that schedules them: MAX_REQUEST_MESSAGES maps with six
keys each (.NET writes four). Decoding so many takes some 25 ms."""

# -------------------------------------------------------------------------- entities, sizes

MAX_ENTITIES: Final = 10_000
"""Queues and topics of a namespace (Service Bus)."""
MAX_SUBSCRIPTIONS_PER_TOPIC: Final = 2_000
"""Service Bus; a send to a topic visits each of them."""
MAX_SQL_RULES_PER_TOPIC: Final = 2_000
"""Service Bus; each is evaluated for each message."""
MAX_CORRELATION_RULES_PER_TOPIC: Final = 100_000
"""Service Bus; these are looked up, not run."""
ALLOWED_SIZES_MB: Final = (1_024, 2_048, 3_072, 4_096, 5_120, 10_240, 20_480, 40_960, 81_920)
"""What MaxSizeInMegabytes may be (Service Bus: five for standard, four more for premium)."""
DEFAULT_SIZE_MB: Final = 1_024
"""Service Bus's default."""
MAX_USER_METADATA: Final = 1_024
"""Characters of UserMetadata (Service Bus)."""
MAX_AUTHORIZATION_RULES: Final = 12
"""Keys with a name of one entity (Service Bus)."""
MAX_KEY_NAME: Final = 256
"""Characters of the name of a key (Service Bus)."""
MAX_KEY: Final = 256
"""Characters of a key (Service Bus: 44, the base64 of 256 bits)."""
MAX_PARTITIONS: Final = 16
"""Partitions of a partitioned entity (Service Bus). Far below the 16 bits that the sequence number
has for them."""
MAX_FORWARD_HOPS: Final = 4
"""Auto-forwards that one message may make (Service Bus). Ends A -> B -> A."""

# ---------------------------------------------------------------------------- locks, times

MIN_LOCK_MS: Final = 5 * SECOND_MS
"""Service Bus. Shorter ones end before an answer over a slow link arrives."""
DEFAULT_LOCK_MS: Final = 60 * SECOND_MS
"""Service Bus's default."""
MAX_LOCK_MS: Final = 5 * MINUTE_MS
"""Service Bus. Bounds how long a dead receiver can hide a message; longer work renews."""
MIN_TTL_MS: Final = 1 * SECOND_MS
"""Smallest DefaultMessageTimeToLive (Service Bus)."""
MAX_DURATION_MS: Final = 922_337_203_685_477
""".NET's TimeSpan.MaxValue (10,675,199 days), the wire's "for ever". A duration this long or longer
is kept as NEVER; it also keeps `now + duration` inside 64 bits."""
MIN_AUTO_DELETE_MS: Final = 5 * MINUTE_MS
"""Smallest AutoDeleteOnIdle (Service Bus). A queue must outlive a client's reconnect."""
DUPLICATE_WINDOW_MIN_MS: Final = 20 * SECOND_MS
"""Service Bus."""
DUPLICATE_WINDOW_DEFAULT_MS: Final = 10 * MINUTE_MS
"""Service Bus's default."""
DUPLICATE_WINDOW_MAX_MS: Final = 7 * DAY_MS
"""Service Bus."""
MAX_DUPLICATE_HISTORY: Final = 1_000_000
"""Message ids remembered by one entity. The window alone is no bound: seven days at 10,000 messages
a second are six thousand million rows. Above it the oldest ids are forgotten."""

# -------------------------------------------------------------------------------- sessions

MAX_SESSION_STATE: Final = 256 * KIB
"""Bytes of a session's state: one message of the default size (Service Bus: "one message")."""
MAX_SESSION_STATES: Final = 1_000_000
"""Sessions with a state, per entity (Service Bus); MAX_SESSION_BYTES is reached first unless it is
raised."""
MAX_SESSION_BYTES: Final = 128 * MIB
"""Memory that the sessions of a namespace take, and their states. A session that only waits takes
some 200 bytes beside its messages: 640,000 with a GUID as their id. With one namespace it is a
third of what the process may have under attack (384 MiB in `make hostile`), and a snapshot copies
part of it once more."""
MAX_SESSIONS_LISTED: Final = 100
"""Sessions in one answer of get-message-sessions (the SDKs page by this)."""

# -------------------------------------------------------------------------------- forwarding

RELAY_BATCH: Final = 100
"""Messages of one entity that are read from the store at a time to be forwarded or published."""
RELAY_RETRY_MS: Final = 5_000
"""Delay before a dead letter that could not be forwarded is retried: it has nowhere else to go."""
RELAY_RETRIES: Final = 1_000
"""Dead letters retried per RELAY_RETRY_MS; where more wait, the delay grows in proportion."""

# -------------------------------------------------------------------------------- commands

MAX_BROWSE: Final = 250
"""Messages of one peek (Service Bus). Bodies are read from the log for each."""
MAX_SCAN: Final = 4_096
"""Messages of one page of a scan: as many as a chunk of the table holds."""
MAX_SCAN_BYTES: Final = 1 * MIB
"""Bytes of one page of a scan, but always one message: what waits for one peer stays small."""
MAX_ROWS_LOOKED: Final = 1_000_000
"""Messages that one advance counts: 10 ms."""
MAX_ROWS_WALKED: Final = 20_000
"""The same, of a dead-letter queue or with a tap, where it goes message by message."""
MAX_SPLIT: Final = 1_024
"""Stretches of one split: as many tasks as a large cluster runs at once."""
MAX_CURSORS: Final = 100
"""Readers of one entity that the broker remembers."""
MAX_CURSOR_NAME: Final = 128
"""Characters of a reader's name."""
MAX_TAP_MS: Final = 7 * DAY_MS
"""How long a tap can hold messages back, from their arrival on."""
MAX_TAP_BYTES: Final = 4_096 * MIB
"""What the taps of one entity hold back beside the entity's own messages; above it the oldest are
let go, and whoever has not read them is told."""
MAX_RECEIVE_BY_NUMBER: Final = 250
"""Deferred messages of one receive-by-sequence-number; the same page as a peek."""
MAX_BATCH_DELETE: Final = 4_000
"""Messages of one batch delete (Service Bus premium)."""
MAX_ABANDON_DELAY_MS: Final = 7 * DAY_MS
"""How long an abandoned message can be put off. What is to come back later than that is a message
of its own, and scheduled."""
MAX_FILTERED_BROWSE: Final = 2_500
"""Messages that one browse by a filter looks at: each is read and parsed. Clients ask on."""
MAX_TRANSACTION_MESSAGES: Final = 100
"""Messages of one transaction (Service Bus). Its locks and its group in the log stay small."""
TRANSACTION_TIMEOUT_MS: Final = 2 * MINUTE_MS
"""From the first operation (Service Bus). A client that forgot its transaction holds locks no
longer."""
MAX_OPEN_TRANSACTIONS: Final = 5_000
"""Undischarged transactions of a namespace: as many as connections."""
MAX_UNPROVEN_TRANSACTIONS: Final = 500
"""Of these, those of connections that had shown no token when they declared them."""
MAX_UNPROVEN_PER_CONNECTION: Final = 50
"""Of these, those of one connection, so that one peer cannot take them all."""
MAX_TRANSACTION_BYTES: Final = 64 * MIB
"""What the undischarged transactions of one connection hold in memory. One of a hundred messages of
512 KiB fits; larger ones are on disk in pieces."""
MAX_ALL_TRANSACTION_BYTES: Final = 128 * MIB
"""The same of a namespace. A commit is not asked whether the disk has room for it, so this is less
than what a disk that is nearly full keeps free."""
MAX_TRANSACTIONS_PER_CONNECTION: Final = 1_000
"""Undischarged transactions of one connection, so that one peer cannot take all of a namespace."""

# ---------------------------------------------------------------------- SQL filters, actions

MAX_SQL_TEXT: Final = 1_024
"""Characters of a filter or an action (Service Bus)."""
MAX_SQL_TOKENS: Final = 200
"""Words of a filter. RabbitMQ's figure, chosen after its own SQL filters were attacked."""
MAX_SQL_DEPTH: Final = 32
"""Nesting of a filter: the parser is recursive, and this is what keeps its stack small."""
MAX_SQL_STEPS: Final = 10_000
"""Steps of one evaluation. Cost is charged for what a step does (LIKE: by characters), so that
2,000 hostile rules delay a send by a known time."""
MAX_SQL_STATEMENTS: Final = 32
"""Statements of one action (Service Bus)."""

# -------------------------------------------------------------------------------- priority

MIN_PRIORITY_LEVELS: Final = 2
"""One level is a plain queue."""
MAX_PRIORITY_LEVELS: Final = 32
"""RabbitMQ's quorum queues have the same. Choosing the next message looks at the head of each
level."""
MAX_PRIORITY_RULES: Final = 100
"""Rules that map a message to a level, run in order on each send."""
MAX_PRIORITY_WEIGHT: Final = 1_000
"""Share of a level. Larger ratios are starvation under another name."""
MIN_AGING_MS: Final = 1
"""Aging faster than the clock ticks would be first-in-first-out, paid for twice."""
MAX_AGING_MS: Final = 7 * DAY_MS
"""Aging slower than this is none: leave it out instead."""

# ----------------------------------------------------------------------------------- rates

MAX_RATE_MESSAGES: Final = 1_000_000
"""Messages of a rate and of its burst: far more than a broker takes."""
MAX_RATE_KEYS: Final = 10_000
"""Senders, and tenants, whose use one entity remembers: as many as used it within their rate's
time. Those beyond share one rate, so that made-up tenants fill no memory."""
MAX_RATE_KEY: Final = 128
"""Characters of a tenant's name that count."""

# ----------------------------------------------------------------------------- the log's files

SEGMENT_BYTES: Final = 64 * MIB
"""One file of the log. Small enough that a straggler pins little and is cheap to copy; large enough
that 5 million messages of 1 KB are a hundred index files to open."""
MAX_GROUP_BYTES: Final = 1 * MIB
"""Staged bytes that close a group: the sync of 1 MiB takes some 4 ms here, and everyone in it waits
so long. One larger message, or one large transaction, still is a group."""
MAX_STAGED_BYTES: Final = 64 * MIB
"""Waiting for the disk, all groups together. Above it sends are refused as retryable
(back-pressure) instead of filling the memory."""
DISK_FREE_MIN_BYTES: Final = 4 * SEGMENT_BYTES
"""Free space below which sends are refused as retryable. Settling goes on, because it frees space;
compaction needs a segment to copy into."""
BODY_CACHE_BYTES: Final = 8 * MIB
"""Bodies kept in memory between a send and its delivery. More only helps a consumer that lags by
less than this; the page cache does the rest."""
MAX_HOLD_MS: Final = 7 * DAY_MS
MAX_HOLD_BYTES: Final = 65_536 * MIB
"""A reader beside the broker (the journal) can keep no more of the log from being dropped than
this, and not for longer after it was last seen: one that died must not fill the disk."""

# -------------------------------------------------------------------------------- AMQP, peers

MIN_FRAME_BYTES: Final = 512
"""The floor of AMQP 1.0 §2.7.1, and the largest frame during SASL (§5.3.1)."""
PRE_OPEN_FRAME_BYTES: Final = 8 * KIB
"""A frame before `open` is settled: nobody is authenticated yet (RabbitMQ's figure)."""
DEFAULT_FRAME_BYTES: Final = 64 * KIB
"""What we offer: a group of frames then fits a socket buffer."""
MAX_FRAME_BYTES: Final = 1 * MIB
"""The largest frame that can be configured (Service Bus premium)."""
MAX_NESTING: Final = 16
"""Depth of lists, maps and described types (stack overflow by nested tables)."""
MAX_NODES_PER_FRAME: Final = 10_000
"""Values in one frame (amplification by zero-width elements)."""
MAX_SECTIONS: Final = 1_000
"""Sections of one message (one message of a million empty sections)."""
MAX_CHANNELS: Final = 5_000
"""Sessions of one connection (Service Bus): the SDKs for .NET and JavaScript open one for a link,
and have all links of a client on one connection."""
MAX_LINKS_PER_CONNECTION: Final = 10_000
"""Links of one connection; a session receiver of .NET has three."""
MAX_PARTIAL_BYTES: Final = 16 * MIB
"""Messages of one connection of which not all frames have come, over all links. Beyond it what has
come goes to disk at once, in pieces; a batch or a request, which cannot, is rejected as busy."""
MAX_DELIVERY_TAG: Final = 128
"""Bytes of a delivery tag that is taken. AMQP allows 32 (§2.8.7), and we send no more; the old SDK
for Java (azure-servicebus 3.6.7) tags its requests to $cbs with the 36 characters of a UUID."""
MAX_CREDIT: Final = 1_000_000
"""Credit of one link that we honour. It takes no memory: what may be unsettled has bounds."""
MAX_PREFETCH: Final = 5_000
"""Messages that the lean client asks for at once."""
MAX_UNSETTLED: Final = 5_000
"""Messages of one session that a peer has sent, and that are not answered: then nothing more is
read."""
MAX_UNSETTLED_OUT: Final = 100_000
"""Deliveries of one connection, over all its links, that its peer has not settled and whose locks
live. Each takes some 250 bytes here and a lock in core."""
LOCK_RECHECK_MS: Final = 1_000
"""How often a connection with so many is looked at for locks that are over."""
MAX_CONNECTIONS: Final = 5_000
"""Connections of a namespace (Service Bus)."""
MAX_UNAUTHENTICATED: Final = 256
"""Connections that have not come through SASL and `open` (or, in HTTP, through a first request that
was allowed). Each can cost a TLS handshake and its buffers to somebody whom nobody knows."""
MAX_UNAUTHENTICATED_PER_ADDRESS: Final = 128
"""The same, from one address: half of all, so that one address never shuts the others out. Not 16:
a machine, or a company behind one address, that comes back after a restart brings hundreds of
connections in the same second, and an honest one is through in milliseconds."""
MAX_AT_THE_DOOR: Final = 1_024
"""Accepted sockets that wait, unread, until one of the two above has room. As long as the listen
queue; the next ones are hung up on."""
DOOR_SILENCE_MS: Final = 1 * SECOND_MS
"""While somebody waits at the door, an unauthenticated peer that says nothing for this long makes
room. Clients speak first, so the honest ones are never that silent."""
MAX_TLS_HANDSHAKES: Final = 64
"""Handshakes in flight: each costs about 2 ms of CPU. The next ones wait, unread."""
TOKEN_TIMEOUT_MS: Final = 60 * SECOND_MS
"""From `open` to the first token that is taken: SASL proves nothing yet, since the SDKs come as
ANONYMOUS and bring their token to $cbs."""
SASL_TIMEOUT_MS: Final = 10 * SECOND_MS
"""To finish SASL (RabbitMQ's figure)."""
OPEN_TIMEOUT_MS: Final = 30 * SECOND_MS
"""From the first byte to `open`."""
WRITE_STALL_MS: Final = 60 * SECOND_MS
"""A peer that takes nothing for this long is gone."""
WRITE_STALL_BYTES: Final = 64 * KIB
"""What a peer must take within WRITE_STALL_MS, once it is clogged: one byte a minute is nothing,
too."""
MAX_OUTPUT_BUFFER: Final = 256 * KIB
"""Bytes waiting for one peer. Above it nothing more is read from that peer, and nothing more is
handed out to it."""
MAX_OUTPUT_TOTAL: Final = 256 * MIB
"""Bytes waiting for all peers that are clogged. Above it the one that holds most is hung up on."""
MAX_WAITING_ANSWERS: Final = 1_000
"""Answers of `$cbs` and `$management` that wait on one connection, because their link has no credit
or its session no window. Above it requests are not served: they time out at the peer, which can
neither see an answer nor a refusal."""
MAX_WAITING_ANSWERS_BYTES: Final = 4 * MIB
"""The same in bytes, without those of large messages, which are on disk."""
MAX_HANDED_OUT: Final = 128
"""Messages that one link is handed out at once, whatever its credit: 5,000 at once are a tenth of a
second in which nobody else is served."""
MAX_HANDED_OUT_BYTES: Final = 512 * KIB
"""The same in bytes, if all are as large as the last one was, and of the first ones as large as the
entity allows; but always one."""
READ_BYTES: Final = 256 * KIB
"""One read from a socket. What comes together is one command for each link: with 64 KiB a message
of 1 KB to one of a hundred queues costs a third more."""
TURN_MS: Final = 2
"""Work for one peer in one turn of the loop; the rest of what it sent waits for the next turn,
behind the others. All who have such a rest share one more such time in a turn."""
FRAMES_AT_ONCE: Final = 256
"""Frames of one peer between two looks at the clock, and so the most messages that share a command:
256 transfers are some 4 ms. Performatives that make or end something count for sixteen."""
CROWDED_TURN_MS: Final = 1
"""TURN_MS while somebody else is there who asks for little."""
CROWDED_FRAMES_AT_ONCE: Final = 32
"""FRAMES_AT_ONCE while somebody else is there who asks for little."""
CPU_SHARE: Final = 0.08
"""Of a core: who asks for less is served before those who have more to do than a turn allows. 8 %
are some 200 sends and receives a second, one by one."""
BURST_MS: Final = 4
"""What a peer may use at once beyond its share."""
MAX_CHURN: Final = 20_000
"""Sessions and links that a connection can begin in a row beyond CHURN_PER_S; then it is closed
(the idea of HTTP/2's rapid reset). More than it may have at once, MAX_CHANNELS and
MAX_LINKS_PER_CONNECTION together."""
CHURN_PER_S: Final = 1_000
"""Sessions and links that a connection can begin per second for ever. No SDK comes near: each costs
it a round trip and some milliseconds of its own."""
STREAM_BYTES: Final = 256 * KIB
"""What is read of large messages for one peer before it has taken that."""
MAX_MANAGEMENT_REQUEST: Final = 4 * MIB
"""A $management request, counted while it streams in. A batch of messages to
schedule has room in it, or one message of a premium namespace's default size with its envelope; it
is in memory as a whole, so larger messages are scheduled by sending them."""

# ------------------------------------------------------------------------------ HTTP and XML

MAX_HTTP_HEAD: Final = 16 * KIB
"""Request line and headers together (what most servers have). A token is below 4 KiB."""
MAX_HTTP_BODY: Final = 1 * MIB
"""Body of one request, counted while it streams in. It is kept before anybody is authenticated, so
MAX_UNAUTHENTICATED of them are 256 MiB."""
MAX_HTTP_HEADERS: Final = 64
"""Headers of one request, and trailers of a chunked one."""
HTTP_REQUEST_MS: Final = 30 * SECOND_MS
"""From the first byte of a request to its last (slow bodies)."""
HTTP_IDLE_MS: Final = 2 * MINUTE_MS
"""Between two requests of one connection."""
MAX_XML_DEPTH: Final = 20
"""Elements within elements; a rule inside a subscription inside an entry has nine."""
MAX_XML_NODES: Final = 2_000
"""Elements and attributes of one body: 200 properties of a filter, with room."""
MAX_METRIC_ENTITIES: Final = 1_000
"""Entities with lines of their own among the metrics; the others are shown as one. Each has some
twenty series, and whoever keeps them pays for each."""
MAX_ADMIN_PAGE: Final = 100
"""Entities of one answer (Service Bus): each costs a kilobyte."""

# --- the console ----------------------------------------------------------------------------------

CONSOLE_PAGE: Final = 50
MAX_CONSOLE_PAGE: Final = 500
"""Rows of one answer: more is not read, and would keep the loop busy."""
MAX_CONSOLE_SCAN: Final = 10_000
"""Messages that one request with a filter looks at; the next one goes on from there."""
CONSOLE_VISIT_MS: Final = 12 * 3_600 * SECOND_MS
CONSOLE_IDLE_MS: Final = 3_600 * SECOND_MS
"""So long a visit lasts, in all and without a request."""
MAX_CONSOLE_VISITORS: Final = 1_000
CONSOLE_TRIES_PER_MINUTE: Final = 10
"""Wrong keys, of everybody together. A key cannot be guessed anyway; the log stays readable."""
MAX_BOARD_NOTES: Final = 1_000
MAX_BOARD_BYTES: Final = 64 * KIB
"""Of one process that tells the console what it does."""
