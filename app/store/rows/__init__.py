"""What the store hands to the services: one frozen record a kind of row, its fields named as the columns.

A query selects ``columns(Kind, table)``, then the further fields of a record in their order; ``one`` and
``every`` make the records. States are the words of ``lockstep.status`` as the database holds them.
"""
