"""Generation by GPT-2 small, 4 sequences of 100 tokens and 256 more."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda().eval()
prompt = torch.randint(0, 50257, (4, 100), device="cuda")
model.generate(prompt, max_new_tokens=256, do_sample=False, eos_token_id=None, pad_token_id=0)
