"""Rounds of seldom-synchronised training: each node trains by itself, and then all exchange what they have trained"""
