"""Answers as JSON documents: one shape for the command line and the API.

Keys are the field names of the model and stay as they are. This room knows no storage and makes
no decision; it only turns frozen values into plain ones.
"""
