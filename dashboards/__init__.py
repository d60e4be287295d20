"""What an operator imports: a dashboard, rules with their tests, and the runbook they point to."""
