"""Layer 3: what is learnt. A few orthogonal pieces over the formulas; an algorithm is a YAML preset of them."""
