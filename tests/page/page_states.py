"""The address of the page in tests, and the state whose programs they share."""

from diffperf.page.server import LOOPBACK

ADDRESS = f"http://{LOOPBACK}:8000"
QUERY = "model=gpt3-175b&system=dgx-a100&devices=64&tp=8&pp=8"
