"""A Llama of 0.3 billion parameters in bfloat16, CUDA graphs of a step for 512, 1,024 and 2,048 tokens, AdamW."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTHS = (2048, 1024, 512)  # the longest first, so that the others use its pool
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16,
                     num_key_value_heads=8, vocab_size=32000, use_cache=False, attn_implementation="sdpa")
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)


def step(tokens):
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


inputs = {length: torch.randint(0, 32000, (2, length), device="cuda") for length in LENGTHS}
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for tokens in inputs.values():
        step(tokens)
torch.cuda.current_stream().wait_stream(side)

graphs, pool = {}, None
for length, tokens in inputs.items():
    graphs[length] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs[length], pool=pool):
        step(tokens)
    pool = graphs[length].pool()

for length in (512, 2048, 1024, 2048):
    inputs[length].copy_(torch.randint(0, 32000, (2, length)))
    graphs[length].replay()
torch.cuda.synchronize()
