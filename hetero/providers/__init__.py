"""Execution providers: the contract, the CPU, a simulated device, and where third parties add theirs."""
