"""What a broker does by its role: master, slave, or acting master (``enableSlaveActingMaster``).

``role`` puts replication together for one broker, ``acting_option`` what
``enableSlaveActingMaster`` adds. SANS-IO: ``acting_rules`` (does this slave act?), ``held_tables``
(which copy of a table may a slave use?), ``slave_reads`` (which broker does a consumer pull from
next?). Trio: ``table_copy`` (a slave copies its master's tables), ``broker_group`` (the other
brokers of this name), ``acting_master`` (a slave begins and ends the master's work), ``takeover``
(a master that starts takes that work over).
"""
