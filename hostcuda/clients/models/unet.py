"""A U-Net of a diffusion model, 8 images of 64 x 64, AdamW."""
import torch
from diffusers import UNet2DModel

model = UNet2DModel(
    sample_size=64, block_out_channels=(128, 256, 512),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D")).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    images = torch.randn(8, 3, 64, 64, device="cuda")
    times = torch.randint(0, 1000, (8,), device="cuda")
    (model(images, times).sample - images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
