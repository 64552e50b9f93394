"""Coupling of two blocks beside its value by chance."""

import coupling_lib as cl

model = cl.load_model("nano-neox", revision="step100")  # change this line
trace = cl.trace(model, "What is the capital of France? The capital is")
found = cl.coupling(trace.jacobian(block=4), trace.jacobian(block=6), k=10)

print({name: round(value, 3) for name, value in found._asdict().items()})
