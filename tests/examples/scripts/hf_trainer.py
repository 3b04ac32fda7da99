"""Trains in transformers' Trainer over a `datasets.Dataset`. It has no line of Headrace."""

import argparse

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from datasets import Dataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    set_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **shape))
    rows = [[number, *[(number * step) % 7 for step in range(1, 8)]] for number in range(60)]
    dataset = Dataset.from_dict({"input_ids": rows, "labels": rows})
    arguments = TrainingArguments(
        output_dir=args.output_dir,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_steps=4,
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=args.resume)


if __name__ == "__main__":
    main()
