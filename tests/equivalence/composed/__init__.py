"""Scripts composed of several features, since rows have mostly one each: a *composition* has one *choice* per *axis*
(:data:`covering.AXES`), and any two choices that go together occur in one of those that are drawn.
"""
