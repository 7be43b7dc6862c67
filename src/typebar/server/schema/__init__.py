"""Requests and responses as typed structs: what is checked, what is sent, and what /openapi.json describes."""
