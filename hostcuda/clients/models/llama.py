"""A Llama of 0.3 billion parameters in bfloat16, checkpointed, 4 sequences of 512 to 2,047 tokens, AdamW."""
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

random.seed(0)
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
                     num_key_value_heads=8, vocab_size=32000)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    tokens = torch.randint(0, 32000, (4, random.randrange(512, 2048)), device="cuda")
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
