"""From other libraries' results to a target and draws; one optional dependency each."""
