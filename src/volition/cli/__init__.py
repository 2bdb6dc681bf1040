"""The command line: one package a command, with the same modules in each.

``command`` declares the options and is quick to load, so that help texts are there at once;
``run`` computes, ``files`` writes, ``printing`` says what came out.
"""
