"""What a report says in words: verdict sentences, the methods paragraph, plain meanings.

Every sentence is generated from the objects it speaks of. Never bare "significant", never "no difference" without
equivalence, never "trend", never a p as a chance; always units, n, interval and test.
"""
