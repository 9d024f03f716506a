"""Compiled programs: instructions, cost, memory plan, collectives."""
