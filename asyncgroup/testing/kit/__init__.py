"""The pytest kit: the fixtures' clusters and contexts, and the marker's options; `asyncgroup.testing.pytest_plugin` is its plugin.

`fixtures` are the plugin's fixtures as functions, over `clusters` (what they run), `contexts` (pytest's side of a test) and
`marker_options`. `pulsar_clusters` and `pulsar_options` are the same for Pulsar. What both share is in `running` and
`kit_options`.
"""
