"""Grade-school word problems in GSM8K's form, made to measure a four-million-parameter model.

Real GSM8K is out of a miniature's reach, so the miniature gets its own: stories put together from reusable moves
(gain, lose, share, pay per piece, compare), each move one sentence of the question and one or two lines of worked
answer. The surprise: an answer is fully determined by its question, wording included, so a trained model is certain of
what it writes and a draft layer has something to predict.
"""
