"""The core: contributions, relations, weights, rules, results. It knows no room."""
